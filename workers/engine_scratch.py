"""A temporary folder of an engine's own: SGLang leaves sockets, files and shared memory behind, and they go with it."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "eaglefeed-engine-"
SHARED_MEMORY = Path("/dev/shm")
_NOTE = ".shared-memory"
_SHARED_MEMORY_PREFIXES = ("sgl_", "sglang_", "sem.mp-", "psm_")
_LONGEST_BASE = 40
"""A Unix socket's path is at most 107 bytes; what SGLang and Python put below the folder takes up to 40."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """An engine's temporary folder, and what it has in ``/dev/shm``, which stands in a file of the folder."""

    folder: Path
    _noted: set[Path] = field(default_factory=set)

    def note_shared_memory(self, pids: Iterable[int]) -> None:
        """What these processes have mapped now: one that dies later can no longer be asked, and leaves it there."""
        self._noted.update(shared_memory_of(pids))
        (self.folder / _NOTE).write_text("\n".join(map(str, self._noted)))


@contextmanager
def engine_scratch() -> Iterator[Scratch]:
    """A private folder for the ``TMPDIR`` of one engine's processes; removed at the end, with all that it stands for.

    What a supervisor left that was killed is removed first: a living one holds a lock on its folder, which Linux
    opens when the process ends, however it ends.
    """
    base = _base()
    sweep(base)
    folder, lock = _make(base)
    _link_caches(folder, base)
    try:
        yield Scratch(folder)
    finally:
        _remove(folder)
        os.close(lock)


def sweep(base: Path) -> list[Path]:
    """Remove the folders that no living process holds; those removed."""
    return [folder for folder in base.glob(f"{PREFIX}*") if _remove_unheld(folder)]


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """SGLang's and Python's files in ``/dev/shm`` that these processes have mapped."""
    found: set[Path] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
            paths = {Path(words[5]) for line in lines if len(words := line.split(maxsplit=5)) == 6}
            found |= {path for path in paths if _is_shared_memory(path)}
    return found


def _is_shared_memory(path: Path) -> bool:
    return path.parent == SHARED_MEMORY and path.name.startswith(_SHARED_MEMORY_PREFIXES)


def _base() -> Path:
    """The system's temporary folder, unless its path is too long for the sockets below it."""
    base = Path(tempfile.gettempdir())
    return base if len(os.fsencode(base)) <= _LONGEST_BASE else Path("/tmp")


def _make(base: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that holds it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # 0700
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # else another start took it for a dead one's, before it was locked
            return folder, lock
        os.close(lock)


def _link_caches(folder: Path, base: Path) -> None:
    """Kernels that are compiled into ``<TMPDIR>/<user>`` (CuTe DSL, quack) stay where the next start finds them."""
    for user in _user_names():
        shared = base / user
        with contextlib.suppress(OSError):
            shared.mkdir(mode=0o700, exist_ok=True)
            if not shared.is_symlink() and shared.stat().st_uid == os.getuid():
                (folder / user).symlink_to(shared)


def _user_names() -> set[str]:
    """By the environment and by the system, as different packages ask; none where neither knows."""
    names = set()
    for ask in (getpass.getuser, lambda: pwd.getpwuid(os.getuid()).pw_name):
        with contextlib.suppress(KeyError, OSError):
            names.add(ask())
    return names


def _remove_unheld(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False  # gone, closed to us, or no folder
    try:
        if os.fstat(lock).st_uid != os.getuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return not folder.exists()


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in map(Path, (folder / _NOTE).read_text().splitlines()):
            if _is_shared_memory(path):
                path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
