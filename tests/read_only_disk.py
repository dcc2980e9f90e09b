"""A file system of a test's own that is made read-only, as a kernel does with a failing disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.rq_workers import until


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
