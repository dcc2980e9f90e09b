"""Keeps a node's engine alive: a real, tiny extraction says whether it works; after a crash or a hang it starts again.

What is asked of the engine meanwhile fails, and the workers hand their jobs back (``workers/worker.py``). A sample that
ends the engine again and again is found by ``workers/suspicion.py``, so starting again cannot go on for ever.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from config.retries import Backoff
from eaglefeed.dump import SUFFIX
from eaglefeed.errors import EngineGone, EnvironmentFault
from eaglefeed.identity import RunIdentity
from workers.engine import Engine, EngineEnded
from workers.handshake import shake_hands

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
PROBE_INTERVAL_SECONDS = 10.0
STEADY_SECONDS = 120.0
"""An engine that lived this long starts again without a pause."""


class Processes(Protocol):
    """``workers.engine_command.EngineProcesses``, as far as it is needed here."""

    def wait_until_ready(self, urls: list[str], timeout_seconds: float) -> None: ...

    def require_running(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(slots=True)
class Supervisor:
    """One node's engine.

    Attributes:
        start: starts its processes; a context manager that ends them, whatever happens.
        hang_seconds: how long a tiny extraction may take while no dump appears, before the engine counts as hung.
        on_ready: called each time it has become ready.
    """

    start: Callable[[], AbstractContextManager[Any]]
    urls: list[str]
    identity: RunIdentity
    spool: Path
    start_seconds: float
    hang_seconds: float
    on_ready: Callable[[Any], None]
    was_ready: bool = False

    def run(self) -> None:
        """Until a signal (KeyboardInterrupt).

        Raises EngineEnded or EnvironmentFault when the engine has never become ready: waiting would not mend that.
        """
        signal.signal(signal.SIGTERM, _interrupt)
        backoff = Backoff(1.0, 10.0)
        while True:
            begun = time.monotonic()
            try:
                with self.start() as processes:
                    self._live(processes)
            except (EngineGone, EnvironmentFault) as error:
                if not self.was_ready:
                    raise
                self._rest(error, backoff, time.monotonic() - begun)

    def _live(self, processes: Processes) -> None:
        processes.wait_until_ready(self.urls, self.start_seconds)
        shake_hands(Engine(self.urls, self.start_seconds), self.identity, self.spool)
        self.was_ready = True
        self.on_ready(processes)
        self._watch(processes)

    def _watch(self, processes: Processes) -> None:
        """Raises EngineEnded when a process is gone or the engine hangs; its processes are killed then."""
        next_probe = time.monotonic() + PROBE_INTERVAL_SECONDS
        while True:
            processes.require_running()
            if time.monotonic() >= next_probe:
                if time.time() - self._last_dump_at() > PROBE_INTERVAL_SECONDS:
                    self._probe(processes)
                next_probe = time.monotonic() + PROBE_INTERVAL_SECONDS
            time.sleep(POLL_SECONDS)

    def _probe(self, processes: Processes) -> None:
        begun = time.time()
        try:
            shake_hands(Engine(self.urls, self.hang_seconds), self.identity, self.spool)
        except (EngineGone, EnvironmentFault) as error:
            processes.require_running()
            if self._last_dump_at() > begun:
                return  # busy with a long queue, and getting on
            processes.kill()
            raise EngineEnded(
                f"the engine did not extract three tokens within {self.hang_seconds:.0f} s: {error}"
            ) from error

    def _last_dump_at(self) -> float:
        """When a dump was written last, 0 when none lies there."""
        newest, folder = 0.0, self.spool / self.identity.run
        for path in (*folder.glob(f"*{SUFFIX}"), *folder.glob(f"r[0-9]*/*{SUFFIX}")):
            try:
                newest = max(newest, path.stat().st_mtime)
            except FileNotFoundError:
                continue  # stored and forgotten
        return newest

    def _rest(self, error: Exception, backoff: Backoff, lived_seconds: float) -> None:
        if lived_seconds > STEADY_SECONDS:
            backoff.reset()
        seconds = backoff.next_seconds()
        log.error("%s; it is started again in %.1f s", error, seconds)
        time.sleep(seconds)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
