"""The interface of a store: a few verbs, each idempotent but ``create``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Key, size in bytes, and the checksum the store itself reports (``crc32:…`` in hex, empty if it has none).

    ``modified_at`` is Unix time, 0 where it was not asked for.
    """

    key: str
    num_bytes: int
    checksum: str = ""
    modified_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What an interrupted upload left: parts that no key names yet. ``started_at`` is Unix time."""

    key: str
    upload_id: str
    started_at: float
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is written: part size, parts in flight, attempts of one request."""

    part_bytes: int = 32 << 20
    concurrency: int = 4
    max_attempts: int = 5


class Store(Protocol):
    """Keys are relative, with ``/``.

    Every method raises StoreUnavailable for what may pass, EnvironmentFault for what won't.
    """

    url: str

    def check(self) -> str:
        """Whether objects can be written here, tried with a small one; how ``create`` is kept atomic, in words."""
        ...

    def put_file(self, key: str, path: Path, checksum: str, create_only: bool = False) -> ObjectInfo:
        """Store a file whole; ``checksum`` (``crc32:…``) is sent along and compared with what the store reports.

        Raises CorruptData when they differ, FileExistsError with ``create_only`` when ``key`` exists.
        """
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` only if ``key`` does not exist; False when it does."""
        ...

    def get(self, key: str) -> bytes:
        """Raises FileNotFoundError when there is no such key."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes ``start..end`` (end excluded). Raises FileNotFoundError; CorruptData when fewer come."""
        ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects below ``prefix``, in key order, streamed."""
        ...

    def checksum(self, key: str) -> str:
        """``crc32:…`` of the whole object as the store reports it, else by reading it. Raises FileNotFoundError."""
        ...

    def delete(self, key: str) -> None:
        """No error when it is gone already."""
        ...

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """What interrupted uploads left below ``prefix``."""
        ...

    def discard(self, unfinished: Unfinished) -> None:
        """Remove one of those; no error when it is gone already."""
        ...


def checked_key(key: str) -> str:
    """``key`` if it stays inside the store; raises ValueError otherwise (a caller's mistake, or a hostile manifest)."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts) or "\\" in key or "\0" in key:
        raise ValueError(f"{key!r} is not a key: relative, with '/', no empty or dotted part")
    return key
