"""Fixtures of the integration tests: a disk that fills, and one that becomes read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rq_workers import until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; skips where one cannot be mounted."""
    path = tmp_path / "small-disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted without root: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=False)


class ReadOnly:
    """A file system of the test's own that is made read-only, as a kernel does with a failing disk, and writable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        self._remount("ro")

    def __exit__(self, *_: object) -> None:
        self._remount("rw")

    def _remount(self, how: str) -> None:
        """Tried for a while: it is refused while somebody writes."""
        until(lambda: not self._try(how), 20, f"the file system becomes {how}: {self._try(how)}")

    def _try(self, how: str) -> str:
        command = ["mount", "-o", f"remount,{how}", str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.fixture
def read_only(small_disk: Path) -> ReadOnly:
    """``with read_only:`` the small disk cannot be written."""
    return ReadOnly(small_disk)
