"""A process of the stand that is started again when it ends, as compose's ``restart: unless-stopped`` does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.rq_workers import CHECKOUT

MARK = "EAGLEFEED_CHAOS"
"""An environment variable with the stand's own value: whoever has it after the end is an orphan."""


class Service:
    """``restarts``: whether it is started again whatever it ended with; otherwise only after a failure."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, restarts: bool = True
    ) -> None:
        self.name, self.command, self.environment, self.log, self.restarts = name, command, environment, log, restarts
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted, self.down_until, self.num_starts = False, 0.0, 0

    def start(self) -> None:
        self.wanted = True
        with self.log.open("ab") as file:
            file.write(f"--- start {self.num_starts} at {time.strftime('%H:%M:%S')}\n".encode())
            file.flush()
            self.process = subprocess.Popen(
                self.command,
                cwd=CHECKOUT,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.num_starts += 1

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tend(self) -> None:
        """Start it again when it has ended and should not have."""
        if not self.wanted or self.is_running or time.monotonic() < self.down_until or self.process is None:
            return
        if self.restarts or self.process.returncode != 0:
            self.start()

    def family(self) -> list[psutil.Process]:
        """The process and all below it; [] when it is gone."""
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self, down_seconds: float = 0.5, everything: bool = True) -> None:
        """SIGKILL, to all of its family or to itself alone; it is started again after ``down_seconds``."""
        self.down_until = time.monotonic() + down_seconds
        for process in self.family() if everything else self.family()[:1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            self.process.wait(10)

    def stop(self, seconds: float = 30.0) -> None:
        """As an operator does: SIGTERM, and time to end well."""
        self.wanted = False
        if self.process is None:
            return
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        if self.is_running:
            self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()


def orphans(mark: str) -> list[str]:
    """Processes that carry the stand's mark and should have ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
    return found
