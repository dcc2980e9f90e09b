"""A part of an engine that is dead, and one that only looks dead for a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from workers import engine_command
from workers.engine import EngineEnded
from workers.engine_command import EngineProcesses
from workers.engine_launch import Launch

WITH_A_PART = """
import os, subprocess, sys, time
part = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, part.pid, os.WEXITED | os.WNOWAIT)
time.sleep(float(sys.argv[1]))
part.wait()
time.sleep(60)
"""


@contextmanager
def engine_with_an_ended_part(folder: Path, reaped_after: float) -> Iterator[EngineProcesses]:
    """A process in an engine's place, whose child has ended and is asked for after that many seconds."""
    command = [sys.executable, "-c", WITH_A_PART, str(reaped_after)]
    with (folder / "log").open("w+b") as log, EngineProcesses([Launch(command, {})], log) as processes:
        launcher = psutil.Process(processes.running[0].pid)
        while [part.status() for part in launcher.children()] != [psutil.STATUS_ZOMBIE]:
            time.sleep(0.01)
        yield processes


def test_a_command_that_the_engine_has_run_is_no_dead_part(tmp_path: Path) -> None:
    """SGLang runs ldconfig and the like; between a command's end and the look at its outcome it is a zombie."""
    with engine_with_an_ended_part(tmp_path, reaped_after=1) as processes:
        deadline = time.monotonic() + 1.5 * engine_command._DEAD_SECONDS
        while time.monotonic() < deadline:
            processes.require_running()
            time.sleep(0.05)


def test_a_part_that_stays_dead_ends_the_engine(tmp_path: Path) -> None:
    """A scheduler killed for memory: named, and the rest of the engine is killed too."""
    with engine_with_an_ended_part(tmp_path, reaped_after=60) as processes:
        (part,) = psutil.Process(processes.running[0].pid).children()
        processes.require_running()
        time.sleep(engine_command._DEAD_SECONDS)
        with pytest.raises(EngineEnded, match=rf"a process of the engine \(python.*, pid {part.pid}\) ended"):
            processes.require_running()
        assert processes.running[0].wait(10) < 0
