"""Fixtures of the integration tests: a disk that fills, and one that becomes read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.read_only_disk import ReadOnly


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


@pytest.fixture
def read_only(small_disk: Path) -> ReadOnly:
    """``with read_only:`` the small disk cannot be written."""
    return ReadOnly(small_disk)
