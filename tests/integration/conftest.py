"""Fixtures of the integration tests: a disk that fills."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


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
