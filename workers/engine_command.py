"""Start this node's patched SGLang and keep it until a signal; one line is printed when it is ready."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import IO, Any

from config.environment import setting_overrides
from config.model_identity import run_identity
from config.run import load_run
from eaglefeed.errors import EngineGone, EnvironmentFault
from workers.engine import Engine
from workers.engine_launch import Launch, engine_launch
from workers.handshake import shake_hands

EXAMPLE = """example:
  eaglefeed engine --run config/smollm2.toml --port 30000"""

_POLL_SECONDS = 0.25
_STOP_SECONDS = 20.0


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
    (spool / settings.name).mkdir(parents=True, exist_ok=True)
    processes = EngineProcesses(launches)
    with processes:
        urls = [f"http://{parsed.host}:{parsed.port + index}" for index in replicas]
        processes.wait_until_ready(urls, settings.engine.start_timeout_seconds)
        shake_hands(Engine(urls, settings.engine.request_timeout_seconds), identity, spool)
        print(
            f"engine ready: {','.join(urls)} {identity.engine} model={identity.model} "
            f"layers={','.join(map(str, identity.layer_ids))} pid={','.join(str(p.pid) for p in processes.running)}",
            flush=True,
        )
        return processes.wait()


class EngineProcesses:
    """SGLang's processes as a process group each, so that a replica ends whole: no orphan keeps a GPU or a port."""

    def __init__(self, launches: list[Launch], output: IO[Any] | None = None) -> None:
        self._launches = launches
        self._output = output
        self._stopping = False
        self._previous: dict[int, Any] = {}
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> EngineProcesses:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._on_signal)
        for launch in self._launches:
            self.running.append(
                subprocess.Popen(
                    launch.command,
                    env={**os.environ, **launch.environment},
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=True,
                )
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.terminate()  # SGLang drains; what outlives it goes with its group
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        self._signal_groups(signal.SIGKILL)
        for process in self.running:
            process.wait()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def wait_until_ready(self, urls: list[str], timeout_seconds: float) -> None:
        """Raises EnvironmentFault when a replica ends or does not answer in time."""
        deadline = time.monotonic() + timeout_seconds
        engine = Engine(urls, timeout_seconds=5)
        while not engine.is_healthy():
            self._require_running()
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"the engine did not answer within {timeout_seconds:.0f} s (engine.start_timeout_seconds)"
                )
            time.sleep(_POLL_SECONDS)

    def wait(self) -> int:
        """Until a signal (0) or until a replica ends (EngineGone)."""
        while not self._stopping:
            self._require_running()
            time.sleep(_POLL_SECONDS)
        return 0

    def _require_running(self) -> None:
        if self._stopping:
            raise KeyboardInterrupt
        for process in self.running:
            if process.poll() is not None:
                raise EngineEnded(f"the engine ended with exit code {process.returncode}; its log is above")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _signal_groups(self, number: int) -> None:
        for process in self.running:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                continue


def free_port() -> int:
    """A port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EngineEnded(EngineGone):
    """The engine's process is gone."""

    exit_code = 3


if __name__ == "__main__":
    from eaglefeed.cli import main as run_verb

    sys.exit(run_verb(["engine", *sys.argv[1:]]))
