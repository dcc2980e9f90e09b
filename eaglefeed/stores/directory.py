"""A store in a directory: an object is a file, written under a temporary name, synced and renamed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from eaglefeed.checksum import path_checksum
from eaglefeed.errors import CorruptData, EnvironmentFault, StoreUnavailable
from eaglefeed.stores.interface import ObjectInfo, Unfinished, checked_key

_PART = ".part-"
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENOLCK}
_COPY_BYTES = 1 << 20


class DirectoryStore:
    """Objects as files below ``root``. ``create`` is a hard link, which the file system makes at most once."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser()
        self.url = str(self.root)

    def check(self) -> str:
        key = f".eaglefeed-check-{secrets.token_hex(4)}"
        with self._faults(key):
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                if not self.create(key, b"check") or self.create(key, b"again"):
                    raise EnvironmentFault(f"{self.url}: hard links do not keep a file from being created twice here")
            finally:
                (self.root / key).unlink(missing_ok=True)
        return "create is a hard link, which the file system makes once"

    def put_file(self, key: str, path: Path, checksum: str, create_only: bool = False) -> ObjectInfo:
        target = self._path(key)
        with self._faults(key), self._temporary(target) as temporary:
            _place(path, temporary)
            found = path_checksum(temporary)
            if found != checksum:
                raise CorruptData(f"{self.url}/{key}: {found} was written in place of {checksum}")
            num_bytes = temporary.stat().st_size
            if create_only:
                os.link(temporary, target)
            else:
                temporary.replace(target)
            _sync_directory(target.parent)
            return ObjectInfo(key, num_bytes, found)

    def create(self, key: str, data: bytes) -> bool:
        target = self._path(key)
        with self._faults(key), self._temporary(target) as temporary:
            with _open_new(temporary) as file:
                file.write(data)
                _sync(file)
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            _sync_directory(target.parent)
            return True

    def get(self, key: str) -> bytes:
        with self._faults(key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._faults(key), self._path(key).open("rb", buffering=0) as file:
            # The whole range at once: the kernel's own read-ahead takes it in small steps.
            _will_need(file.fileno(), start, end)
            data = os.pread(file.fileno(), end - start, start)
            while 0 < len(data) < end - start and (
                more := os.pread(file.fileno(), end - start - len(data), start + len(data))
            ):
                data += more
        if len(data) != end - start:
            raise CorruptData(f"{self.url}/{key}: {len(data)} bytes from {start}, not {end - start}: it is cut")
        return data

    def will_need(self, key: str, start: int, end: int) -> None:
        """Let the kernel begin to read a range that is asked for soon; no error when it can't."""
        with suppress(OSError), self._path(key).open("rb", buffering=0) as file:
            _will_need(file.fileno(), start, end)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._faults(key):
                return ObjectInfo(key, self._path(key).stat().st_size)
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, beginning = prefix.rpartition("/")
        with self._faults(prefix):
            for key, path in self._walk(folder, beginning):
                if not path.name.startswith(_PART):
                    status = path.stat()
                    yield ObjectInfo(key, status.st_size, "", status.st_mtime)

    def checksum(self, key: str) -> str:
        with self._faults(key):
            return path_checksum(self._path(key))

    def delete(self, key: str) -> None:
        with self._faults(key):
            self._path(key).unlink(missing_ok=True)

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        folder, _, beginning = prefix.rpartition("/")
        with self._faults(prefix):
            for key, path in self._walk(folder, beginning):
                if path.name.startswith(_PART):
                    status = path.stat()
                    yield Unfinished(key, path.name, status.st_mtime, status.st_size)

    def discard(self, unfinished: Unfinished) -> None:
        if not unfinished.upload_id.startswith(_PART):
            raise ValueError(f"{unfinished.key} is not what an interrupted write left")
        self.delete(unfinished.key)

    def _path(self, key: str) -> Path:
        return self.root / checked_key(key)

    def _walk(self, folder: str, beginning: str) -> Iterator[tuple[str, Path]]:
        """Files below ``folder`` whose key continues with ``beginning``, in key order; one folder's names at a time."""
        path = self.root / checked_key(folder) if folder else self.root
        try:
            with os.scandir(path) as entries:
                names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            key = f"{folder}/{name}" if folder else name
            if not name.startswith(beginning) and not name.startswith(_PART):
                continue
            if name.endswith("/"):
                yield from self._walk(key[:-1], "")
            else:
                yield key, self.root / key

    @contextmanager
    def _temporary(self, target: Path) -> Iterator[Path]:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{_PART}{secrets.token_hex(8)}")
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _faults(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            if error.errno == errno.ENOSPC:
                free = shutil.disk_usage(_nearest_existing(self.root)).free
                raise StoreUnavailable(f"{self.url}/{key}: the disk is full ({free:,} bytes free)") from error
            if error.errno in _PASSING:
                raise StoreUnavailable(f"{self.url}/{key}: {error.strerror}") from error
            if error.errno == errno.EROFS:
                raise EnvironmentFault(
                    f"{self.url}/{key}: the store is on a read-only file system. Look into `dmesg` why, make it "
                    "writable (`mount -o remount,rw`), or name another store.url; what is stored can still be read"
                ) from error
            raise EnvironmentFault(f"{self.url}/{key}: {error.strerror or error}") from error


def _will_need(descriptor: int, start: int, end: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_WILLNEED)


def _place(source: Path, target: Path) -> None:
    """A second name for the file where both are on one file system, else a synced copy."""
    try:
        os.link(source, target)
        target.chmod(0o644)
    except OSError:
        with source.open("rb") as reader, _open_new(target) as writer:
            shutil.copyfileobj(reader, writer, _COPY_BYTES)
            _sync(writer)


def _open_new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())
