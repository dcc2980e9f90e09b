"""Byte ranges of shards: neighbours read as one, several requests at once, and what was read kept on the local disk.

A reader may be pickled (``spawn``) and forked: connections and threads are made anew in each process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from eaglefeed.cache import DiskCache
from eaglefeed.stores import Store, open_store

GAP_BYTES = 128 << 10
"""Ranges closer than this are read as one: bytes between them cost less than a second request."""

REQUEST_BYTES = 64 << 20
"""No coalesced request is longer (a single sample's may be)."""


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

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes | memoryview]:
        """The bytes of each range, in the order asked for.

        Raises:
            FileNotFoundError, CorruptData, StoreUnavailable: as the store's ``get_range``.
        """
        found: list[bytes | memoryview | None] = [self._cached(each) for each in ranges]
        missing = [place for place, data in enumerate(found) if data is None]
        merged = coalesce([ranges[place] for place in missing])
        for (request, members), data in zip(merged, self._fetch([request for request, _ in merged]), strict=True):
            view = memoryview(data)
            for member in members:
                wanted = ranges[missing[member]]
                part = view[wanted.start - request.start : wanted.end - request.start]
                found[missing[member]] = part
                if self.cache is not None:
                    self.cache.put(self._cache_name(wanted), bytes(part))
        return [data for data in found if data is not None]

    def forget(self, wanted: ByteRange) -> bool:
        """Drop a cached copy that turned out damaged; whether there is a cache to have held one."""
        if self.cache is None:
            return False
        self.cache.drop(self._cache_name(wanted))
        return True

    def store(self) -> Store:
        """This process's own store: connections must not be shared with a parent's."""
        return self._local.store(self.url)

    def _fetch(self, requests: Sequence[ByteRange]) -> list[bytes]:
        store = self.store()
        if len(requests) < 2 or self.requests < 2:
            return [store.get_range(each.key, each.start, each.end) for each in requests]
        pool = self._local.pool(self.requests)
        return list(pool.map(lambda each: store.get_range(each.key, each.start, each.end), requests))

    def _cached(self, wanted: ByteRange) -> bytes | None:
        return None if self.cache is None else self.cache.get(self._cache_name(wanted))

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
    """What belongs to one process: its store and its threads."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._pool: ThreadPoolExecutor | None = None

    def store(self, url: str) -> Store:
        with self._own():
            if self._store is None:
                self._store = open_store(url)
            return self._store

    def pool(self, threads: int) -> ThreadPoolExecutor:
        with self._own():
            if self._pool is None:
                self._pool = ThreadPoolExecutor(threads, "eaglefeed-fetch")
            return self._pool

    def _own(self) -> threading.Lock:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # after a fork: the parent's threads and sockets are not ours
        return self._lock
