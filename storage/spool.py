"""The spool: a node's own folder where dumps wait for storage, with a budget that all its workers count alike."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.run import SpoolSettings
from eaglefeed.errors import EnvironmentFault, SpoolFull
from eaglefeed.progress import byte_size
from storage.file_system import check_file_system, disk_usage, read_only_reason

SHARD_SUFFIX = ".shard"
NORM_NAME = "final_norm.safetensors"
_RESERVED = ".reserved"
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes in the spool (files, and what running batches have reserved) and of its disk."""

    spool_bytes: int
    limit_bytes: int
    disk_used_bytes: int
    disk_bytes: int

    @property
    def fraction(self) -> float:
        return self.spool_bytes / self.limit_bytes


class Spool:
    """Dumps of all runs below ``path``; each run has its own folder, which only this user may enter.

    Usage is what lies on the disk plus what running batches have reserved there, so processes that never talk to each
    other come to the same number.
    """

    def __init__(self, settings: SpoolSettings) -> None:
        self.settings, self.path = settings, Path(settings.path).expanduser()

    def open(self) -> None:
        """Make the folder, private; raises EnvironmentFault, with the numbers, where dumps cannot wait."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / _RESERVED).mkdir(mode=0o700, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            read_only = read_only_reason(self.path) if self.path.exists() else ""
            reason = read_only or f"cannot be made: {error.strerror}"
            raise EnvironmentFault(f"spool.path = {str(self.path)!r}: {reason}") from error
        check_file_system(self.path, self.limit_bytes)
        usage = self.usage()
        if self._is_disk_full(usage, 0):
            raise EnvironmentFault(
                f"spool.path = {str(self.path)!r}: the disk is {100 * usage.disk_used_bytes / usage.disk_bytes:.1f} % "
                f"full ({byte_size(usage.disk_bytes - usage.disk_used_bytes)} of {byte_size(usage.disk_bytes)} free), "
                f"and spool.max_disk_percent = {self.settings.max_disk_percent:g}: make room, or choose another disk"
            )

    def require_writable(self) -> None:
        """Raises SpoolFull, with the way out, while the disk is read-only: no job is taken that cannot be done."""
        reason = read_only_reason(self.path)
        if reason:
            raise SpoolFull(f"spool.path: {reason}")

    def folder(self, run: str) -> Path:
        """The run's own folder, made when it is not there."""
        folder = self.path / run
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def limit_bytes(self) -> int:
        """``max_bytes``, or ``max_disk_percent`` of the disk where that is less."""
        _, disk_bytes = disk_usage(self.path)
        return min(self.settings.max_bytes, int(disk_bytes * self.settings.max_disk_percent / 100))

    def usage(self) -> Usage:
        """Counted now, over all runs and workers of this node."""
        sizes = _sizes(self.path)
        pending = sum(max(0, wanted - sizes.get(batch, 0)) for batch, wanted in self._reservations())
        return Usage(sum(sizes.values()) + pending, self.limit_bytes, *disk_usage(self.path))

    def has_room(self, num_bytes: int) -> bool:
        """Whether ``num_bytes`` more stay below the high mark of the budget and of the disk."""
        usage = self.usage()
        return self._fits(usage, num_bytes, self.settings.high_mark)

    def wait_for_room(
        self,
        num_bytes: int,
        is_stopping: Callable[[], bool] = lambda: False,
        on_wait: Callable[[Usage], None] = lambda usage: None,
    ) -> None:
        """Return when ``num_bytes`` fit. Once over the high mark, only when usage has sunk to the low mark.

        Raises:
            SpoolFull: ``is_stopping`` says so while there is no room.
            EnvironmentFault: ``num_bytes`` can never fit.
        """
        self._require_possible(num_bytes)
        mark = self.settings.high_mark
        while not self._fits(usage := self.usage(), num_bytes, mark):
            mark = self.settings.low_mark
            if is_stopping():
                raise SpoolFull(
                    f"{self.path}: {byte_size(usage.spool_bytes)} of {byte_size(usage.limit_bytes)} wait to be stored"
                )
            on_wait(usage)
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def reserve(
        self,
        batch_id: str,
        num_bytes: int,
        is_stopping: Callable[[], bool] = lambda: False,
        on_wait: Callable[[Usage], None] = lambda usage: None,
    ) -> Iterator[None]:
        """Wait for room and hold it for one batch, whose dumps count against it as they come."""
        claim = self.path / _RESERVED / f"{batch_id}.{os.getpid()}"
        while True:
            self.wait_for_room(num_bytes, is_stopping, on_wait)
            with self._lock():
                if self._fits(self.usage(), num_bytes, self.settings.high_mark):
                    claim.write_text(str(num_bytes))
                    break
        try:
            yield
        finally:
            claim.unlink(missing_ok=True)

    def _fits(self, usage: Usage, num_bytes: int, mark: float) -> bool:
        """An empty spool takes any batch that is possible at all: a mark must not stop the last one for ever."""
        within = usage.spool_bytes + num_bytes <= mark * usage.limit_bytes or usage.spool_bytes == 0
        return within and not self._is_disk_full(usage, num_bytes)

    def _is_disk_full(self, usage: Usage, num_bytes: int) -> bool:
        return usage.disk_used_bytes + num_bytes > usage.disk_bytes * self.settings.max_disk_percent / 100

    def _require_possible(self, num_bytes: int) -> None:
        if num_bytes > self.limit_bytes:
            raise EnvironmentFault(
                f"one batch needs {byte_size(num_bytes)} of spool and {self.path} may hold "
                f"{byte_size(self.limit_bytes)}: raise spool.max_bytes or lower data.batch_tokens"
            )

    def _reservations(self) -> list[tuple[str, int]]:
        """Batch and bytes of each reservation of a living process; a dead one's are removed."""
        found = []
        for claim in sorted((self.path / _RESERVED).glob("*.*")):
            batch, _, owner = claim.name.partition(".")
            if not owner.isdigit() or not is_alive(int(owner)):
                claim.unlink(missing_ok=True)
                continue
            try:
                found.append((batch, int(claim.read_text() or 0)))
            except (FileNotFoundError, ValueError):
                continue  # given up, or not written yet
        return found

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.path / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _sizes(path: Path) -> dict[str, int]:
    """Bytes on the disk below ``path`` by the batch that a file's name begins with ("" for other files)."""
    sizes: dict[str, int] = {}
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != _RESERVED]
        for name in names:
            try:
                num_bytes = (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue  # stored and forgotten while we looked
            batch = name[:32] if len(name) > 32 else ""
            sizes[batch] = sizes.get(batch, 0) + num_bytes
    return sizes


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
