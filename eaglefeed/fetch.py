"""Byte ranges of shards: neighbours read as one, several requests at once, and what was read kept on the local disk.

A reader may be pickled (``spawn``) and forked: connections are made anew in each process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from eaglefeed.cache import DiskCache
from eaglefeed.stores import Store, open_store
from eaglefeed.threads import in_order

Result = TypeVar("Result")

GAP_BYTES = 128 << 10
"""Ranges closer than this are read as one: bytes between them cost less than a second request."""

REQUEST_BYTES = 64 << 20
"""No coalesced request is longer (a single sample's may be)."""


_ANNOUNCED_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes ``start..end`` of the object ``key``; ``tag`` tells a cached copy from another's (a checksum)."""

    key: str
    start: int
    end: int
    tag: str = ""

    @property
    def num_bytes(self) -> int:
        return self.end - self.start

    @property
    def cache_name(self) -> str:
        return f"{self.key}:{self.start}-{self.end}:{self.tag}"


class RangeReader:
    """Reads ranges of a store's objects.

    Args:
        url: as ``open_store`` takes it.
        cache: keeps single ranges between epochs; None reads through.
        requests: how many are in flight at once.
    """

    def __init__(self, url: str, cache: DiskCache | None = None, requests: int = 8) -> None:
        self.url, self.cache, self.requests = url, cache, requests
        self._local = _Process()

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """The bytes of each range, in the order asked for.

        Raises:
            FileNotFoundError, CorruptData, StoreUnavailable: as the store's ``get_range``.
        """
        return self.read_each(ranges, lambda place, data: data)

    def read_each(self, ranges: Sequence[ByteRange], work: Callable[[int, memoryview], Result]) -> list[Result]:
        """``work(place, bytes)`` of each range, in order; a thread that fetched a request works on it at once.

        So one request is on its way while another's samples are decoded. Raises what ``read`` and ``work`` do.
        """
        results: dict[int, Result] = {}
        tasks = self._tasks(ranges)
        inner = max(1, self.requests // max(1, len(tasks)))
        self._announce([request for request, _ in tasks[1:]])

        def run(task: tuple[ByteRange, list[int]]) -> None:
            request, members = task
            data = self._bytes(request)
            parts = [(place, self._part(ranges[place], request, data)) for place in members]
            done = in_order(lambda part: work(*part), parts, min(inner, len(parts)))
            results.update(zip(members, done, strict=True))

        for _ in in_order(run, tasks, min(self.requests, len(tasks))):
            pass
        return [results[place] for place in range(len(ranges))]

    def forget(self, wanted: ByteRange) -> bool:
        """Drop a cached copy that turned out damaged; whether there is a cache to have held one."""
        if self.cache is None:
            return False
        self.cache.drop(self._cache_name(wanted))
        return True

    def store(self) -> Store:
        """This process's own store: connections must not be shared with a parent's."""
        return self._local.store(self.url)

    def _tasks(self, ranges: Sequence[ByteRange]) -> list[tuple[ByteRange, list[int]]]:
        """What the cache holds one by one, the rest joined with its neighbours."""
        if self.cache is None:
            return coalesce(ranges)
        kept = [place for place, each in enumerate(ranges) if self.cache.has(self._cache_name(each))]
        missing = sorted(set(range(len(ranges))) - set(kept))
        joined = coalesce([ranges[place] for place in missing])
        return [(ranges[place], [place]) for place in kept] + [
            (request, [missing[member] for member in members]) for request, members in joined
        ]

    def _announce(self, requests: Sequence[ByteRange]) -> None:
        """Tell a store that can use it what comes next: a disk then reads while the first are decoded."""
        will_need = getattr(self.store(), "will_need", None)
        if will_need is not None and sum(each.num_bytes for each in requests) <= _ANNOUNCED_BYTES:
            for each in requests:
                will_need(each.key, each.start, each.end)

    def _part(self, wanted: ByteRange, request: ByteRange, data: memoryview) -> memoryview:
        """The wanted bytes of a request's, kept in the cache."""
        part = data[wanted.start - request.start : wanted.end - request.start]
        if self.cache is not None and not self.cache.has(self._cache_name(wanted)):
            self.cache.put(self._cache_name(wanted), bytes(part))
        return part

    def _bytes(self, request: ByteRange) -> memoryview:
        cached = None if self.cache is None else self.cache.get(self._cache_name(request))
        return memoryview(cached or self.store().get_range(request.key, request.start, request.end))

    def _cache_name(self, wanted: ByteRange) -> str:
        return f"{self.url}/{wanted.cache_name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = _Process()


def coalesce(ranges: Sequence[ByteRange]) -> list[tuple[ByteRange, list[int]]]:
    """Requests that cover ``ranges``, each with the places of the ranges it covers."""
    merged: list[tuple[ByteRange, list[int]]] = []
    for place in sorted(range(len(ranges)), key=lambda each: (ranges[each].key, ranges[each].start, ranges[each].end)):
        wanted = ranges[place]
        if merged and _joins(merged[-1][0], wanted):
            request, members = merged[-1]
            merged[-1] = (replace(request, end=max(request.end, wanted.end)), [*members, place])
        else:
            merged.append((wanted, [place]))
    return merged


def _joins(request: ByteRange, wanted: ByteRange) -> bool:
    near = request.key == wanted.key and wanted.start - request.end <= GAP_BYTES
    return near and max(request.end, wanted.end) - request.start <= REQUEST_BYTES


class _Process:
    """What belongs to one process: its store, whose connections no other may use."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._store: Store | None = None

    def store(self, url: str) -> Store:
        with self._own():
            if self._store is None:
                self._store = open_store(url)
            return self._store

    def _own(self) -> threading.Lock:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # after a fork: the parent's sockets are not ours
        return self._lock
