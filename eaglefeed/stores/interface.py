"""The interface of a store: seven verbs, each idempotent but ``create``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Key, size in bytes, and the checksum the store itself reports (``crc32:…`` in hex, empty if it has none)."""

    key: str
    num_bytes: int
    checksum: str = ""


class Store(Protocol):
    """Keys are relative, with ``/``.

    Every method raises StoreUnavailable for what may pass, EnvironmentFault for what won't.
    """

    url: str

    def put_file(self, key: str, path: Path, checksum: str) -> ObjectInfo:
        """Store a file whole; ``checksum`` (``crc32:…``) is sent along and compared with what the store reports.

        Raises CorruptData when they differ.
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

    def delete(self, key: str) -> None:
        """No error when it is gone already."""
        ...
