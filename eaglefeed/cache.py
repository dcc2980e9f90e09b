"""Encoded samples kept on a local disk, within a limit of bytes, shared safely by any number of processes.

Each sample is one file, written under a temporary name and renamed: a reader sees it whole or not at all. The sum of
all files stands in ``.bytes``, changed under a lock; whoever passes the limit removes the files that were used longest
ago. A damaged file is found by its sample's checksum (``eaglefeed/dataset.py``) and fetched anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from eaglefeed.errors import UsageError

_LOW_MARK = 0.9


class DiskCache:
    """A folder of cached byte ranges.

    Args:
        folder: made if absent; several processes and several runs may share it.
        max_bytes: what its files may take together.
    """

    def __init__(self, folder: str | Path, max_bytes: int) -> None:
        if max_bytes <= 0:
            raise UsageError(f"a disk cache of {max_bytes} bytes: give a positive limit, or leave the cache out")
        self.folder = Path(folder).expanduser()
        self.max_bytes = max_bytes
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> bytes | None:
        """The bytes kept under ``name``, marked as used now; None when there are none."""
        path = self._path(name)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        return data

    def has(self, name: str) -> bool:
        """Whether there are bytes under ``name`` now; another process may remove them any time."""
        return self._path(name).exists()

    def put(self, name: str, data: bytes) -> bool:
        """Keep ``data``; False when it is larger than the limit or the disk has no room: a cache may fail."""
        if len(data) > self.max_bytes:
            return False
        path = self._path(name)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(exist_ok=True)
            with self._locked():
                total = self._make_room(len(data))
                temporary.write_bytes(data)
                replaced = path.stat().st_size if path.exists() else 0
                temporary.replace(path)
                self._write_sum(total + len(data) - replaced)
        except OSError:
            temporary.unlink(missing_ok=True)
            return False
        return True

    def drop(self, name: str) -> None:
        """Forget ``name``; no error when it is not there."""
        path = self._path(name)
        with self._locked(), contextlib.suppress(FileNotFoundError):
            size, total = path.stat().st_size, self._read_sum()
            path.unlink()
            self._write_sum(total - size)

    def num_bytes(self) -> int:
        """What the files take, counted anew."""
        return sum(size for _, size, _ in self._files())

    def _path(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self.folder / digest[:2] / digest[2:]

    def _make_room(self, num_bytes: int) -> int:
        """What the files take after the oldest were removed for ``num_bytes`` more."""
        total = self._read_sum()
        if total + num_bytes <= self.max_bytes:
            return total
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        goal = min(self.max_bytes * _LOW_MARK, self.max_bytes - num_bytes)
        for _, size, path in files:
            if total <= goal:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        return found

    def _read_sum(self) -> int:
        try:
            return int((self.folder / ".bytes").read_text())
        except (FileNotFoundError, ValueError):
            return self.num_bytes()

    def _write_sum(self, total: int) -> None:
        temporary = self.folder / ".bytes.part"
        temporary.write_text(str(max(total, 0)))
        temporary.replace(self.folder / ".bytes")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl

        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
