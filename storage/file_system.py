"""Which file system a spool lies on, and whether dumps can wait there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from eaglefeed.errors import EnvironmentFault
from eaglefeed.progress import byte_size

_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs"}
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_MEMORY_SHARE = 0.5
"""A spool in memory may take this much of what is free: the engine and the workers live there too."""


def check_file_system(path: Path, limit_bytes: int) -> None:
    """Raises EnvironmentFault, with the numbers, for a spool that is read-only, remote, or would eat the memory."""
    kind, mount = file_system_of(path)
    free = byte_size(shutil.disk_usage(path).free)
    place = f"spool.path = {str(path)!r} ({kind} at {mount}, {free} free)"
    if kind in _REMOTE or kind.startswith("fuse."):
        raise EnvironmentFault(f"{place} is not this node's own disk: choose a local one")
    if kind in _IN_MEMORY:
        available = _available_memory_bytes()
        if limit_bytes > _MEMORY_SHARE * available:
            raise EnvironmentFault(
                f"{place} is memory: its budget of {byte_size(limit_bytes)} is more than half of the "
                f"{byte_size(available)} that are free; choose a disk, or lower spool.max_bytes"
            )
    _check_writable(path, place)


def read_only_reason(path: Path) -> str:
    """Why nothing can be written at ``path`` now, with the way out; "" where it can. Nothing is written to find out."""
    if not os.statvfs(path).f_flag & os.ST_RDONLY:
        return ""
    kind, mount = file_system_of(path)
    return (
        f"{path} is on a read-only file system ({kind} at {mount}). A kernel makes one read-only when its disk fails: "
        f"look into `dmesg`, then `mount -o remount,rw {mount}`. What lies there is kept, and work goes on by itself"
    )


def disk_usage(path: Path) -> tuple[int, int]:
    """Bytes used and bytes usable, as df counts them: what the file system keeps for root is neither."""
    disk = shutil.disk_usage(path)
    return disk.used, disk.used + disk.free


def file_system_of(path: Path) -> tuple[str, str]:
    """Type and mount point, as the kernel lists them; ("unknown", "/") where it lists none."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    except OSError:
        return "unknown", "/"
    target, best = str(path.resolve()), ("unknown", "")
    for line in mounts:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].encode().decode("unicode_escape")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[1]):
            best = (after.split()[0], mount)
    return best


def _available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _check_writable(path: Path, place: str) -> None:
    probe = path / f".check-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise EnvironmentFault(f"{place} cannot be written: {error.strerror}") from error
    finally:
        probe.unlink(missing_ok=True)
