"""Start this node's patched SGLang and keep it until a signal; one line is printed when it is ready."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from config.environment import setting_overrides
from config.model_identity import run_identity
from config.run import load_run
from eaglefeed.errors import EnvironmentFault
from workers.engine import Engine, EngineEnded
from workers.engine_launch import Launch, engine_launch
from workers.engine_scratch import engine_scratch
from workers.supervisor import Supervisor

EXAMPLE = """example:
  eaglefeed engine --run config/smollm2.toml --port 30000"""

_POLL_SECONDS = 0.25
_STOP_SECONDS = 20.0
_DEAD_SECONDS = 2.0
"""Nobody has asked for a part's end for so long: the short commands that SGLang runs are zombies for a moment too."""
_PR_SET_PDEATHSIG = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", required=True, metavar="RUN.toml", help="the run whose model and layers are served")
    parser.add_argument("--spool", metavar="DIR", help="where dumps go (default: spool.path of the run)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=30000, help="port of the first replica (default: %(default)s)")


def main(parsed: argparse.Namespace) -> int:
    """Exit codes: 0 stopped by a signal, 3 the engine did not start or went away."""
    overrides = setting_overrides() | ({"spool.path": parsed.spool} if parsed.spool else {})
    settings = load_run(parsed.run, overrides)
    identity = run_identity(settings)
    spool = Path(settings.spool.path)
    replicas = range(settings.engine.replicas)
    launches = [engine_launch(settings, identity, spool, parsed.host, parsed.port + index, index) for index in replicas]
    urls = [f"http://{parsed.host}:{parsed.port + index}" for index in replicas]

    def say_ready(processes: EngineProcesses) -> None:
        print(
            f"engine ready: {','.join(urls)} {identity.engine} model={identity.model} "
            f"layers={','.join(map(str, identity.layer_ids))} pid={','.join(str(p.pid) for p in processes.running)}",
            flush=True,
        )

    with contextlib.suppress(KeyboardInterrupt):
        Supervisor(
            start=lambda: EngineProcesses(launches),
            urls=urls,
            identity=identity,
            spool=spool,
            start_seconds=settings.engine.start_timeout_seconds,
            hang_seconds=settings.engine.hang_timeout_seconds,
            on_ready=say_ready,
        ).run()
    return 0


class EngineProcesses:
    """SGLang's processes, a group for each replica, so that it ends whole: no orphan keeps a GPU or a port.

    While they run, SIGTERM is a KeyboardInterrupt, as SIGINT is; when this process dies without a word, Linux tells
    the replicas. What they leave in the temporary folder and in shared memory is removed when they have ended.
    """

    def __init__(self, launches: list[Launch], log: IO[Any] | None = None) -> None:
        """``log``: where SGLang's words go, standard error by default; standard output has the one line alone."""
        self._launches = launches
        self._log = log or sys.stderr
        self._previous: Any = signal.SIG_DFL
        self._end_scratch = contextlib.ExitStack()
        self._zombies: dict[int, float] = {}
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> EngineProcesses:
        self._previous = signal.signal(signal.SIGTERM, _interrupt)
        self._scratch = self._end_scratch.enter_context(engine_scratch())
        for launch in self._launches:
            if launch.folder is not None:
                launch.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.running.append(
                subprocess.Popen(
                    launch.command,
                    env={**os.environ, **launch.environment, "TMPDIR": str(self._scratch.folder)},
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        # A second signal must not leave the job half done.
        held = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGTERM, signal.SIGINT)]
        self._note_shared_memory()
        for process in self.running:
            process.terminate()  # SGLang drains; what outlives it goes with its group
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        self._signal_groups(signal.SIGKILL)
        for process in self.running:
            process.wait()
        self._end_scratch.close()
        for number, handler in [*held, (signal.SIGTERM, self._previous)]:
            signal.signal(number, handler)

    def wait_until_ready(self, urls: list[str], timeout_seconds: float) -> None:
        """Raises EnvironmentFault when a replica ends or does not answer in time."""
        deadline = time.monotonic() + timeout_seconds
        engine = Engine(urls, timeout_seconds=5)
        while not engine.is_healthy():
            self.require_running()
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"the engine did not answer within {timeout_seconds:.0f} s (engine.start_timeout_seconds)"
                )
            time.sleep(_POLL_SECONDS)
        self._note_shared_memory()

    def require_running(self) -> None:
        """Raises EngineEnded when a replica, or a part of one, has ended."""
        for process in self.running:
            if process.poll() is not None:
                raise EngineEnded(f"the engine ended with exit code {process.returncode}; its log is above")
        self._look_for_dead_parts()

    def kill(self) -> None:
        """End every replica at once, with all its parts."""
        self._signal_groups(signal.SIGKILL)

    def _look_for_dead_parts(self) -> None:
        """SGLang does not always notice that a part of it is dead (a scheduler killed for memory)."""
        now, before = time.monotonic(), self._zombies
        found = {part: name for process in self.running for part, name in _zombies_of(process.pid)}
        self._zombies = {part: before.get(part, now) for part in found}
        for part, since in self._zombies.items():
            if now - since >= _DEAD_SECONDS:
                self.kill()
                raise EngineEnded(f"a process of the engine ({found[part]}, pid {part}) ended; its log is above")

    def _note_shared_memory(self) -> None:
        parts: list[int] = []
        for process in self.running:
            with contextlib.suppress(psutil.Error):
                parts += [process.pid, *(part.pid for part in psutil.Process(process.pid).children(recursive=True))]
        self._scratch.note_shared_memory(parts)

    def _signal_groups(self, number: int) -> None:
        for process in self.running:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """In the child before it becomes SGLang: SIGTERM when its parent is gone, even by SIGKILL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _zombies_of(pid: int) -> Iterator[tuple[int, str]]:
    """Pid and name of each child that has ended, and whose end its parent has not asked for."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                if child.status() == psutil.STATUS_ZOMBIE:
                    yield child.pid, child.name()


if __name__ == "__main__":
    from eaglefeed.cli import main as run_verb

    sys.exit(run_verb(["engine", *sys.argv[1:]]))
