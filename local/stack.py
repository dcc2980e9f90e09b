"""compose.yaml's services as child processes: started in their order, watched, started again, stopped in reverse."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from eaglefeed.errors import EnvironmentFault
from local.compose_file import Service, read_services
from local.processes import Child

log = logging.getLogger(__name__)

CHECKOUT = Path(__file__).resolve().parent.parent
COMPOSE_FILE = CHECKOUT / "compose.yaml"
PROGRAMS = Path(__file__).resolve().parent / "bin"
STOP_SECONDS = 60.0
RESTARTS_PER_MINUTE = 5


@dataclass(slots=True)
class Running:
    """A service's replicas and when they were started again."""

    service: Service
    children: list[Child] = field(default_factory=list)
    restarted_at: list[float] = field(default_factory=list)


class Stack:
    """Some of compose.yaml's services on this machine.

    Args:
        names: services to run; those they need but that are not named are somebody else's.
        variables: what the compose file's ``${…}`` take.
        logs: a folder, one file a process.

    Use as a context manager: whatever ends the block, the services are stopped.
    """

    def __init__(self, names: tuple[str, ...], variables: Mapping[str, str], logs: Path) -> None:
        self.logs, self._variables = logs, dict(variables)
        services = read_services(COMPOSE_FILE, names, variables)
        self._running = {name: Running(services[name]) for name in in_order(services)}

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Start every service, each when its needs are healthy; return when all are started, healthy or not.

        Raises EnvironmentFault, with the end of its log, when one ends before it is healthy.
        """
        for running in self._running.values():
            for need in running.service.needs:
                if need in self._running:
                    self.wait_healthy(need, is_stopping)
            while len(running.children) < running.service.replicas:
                running.children.append(self._start_one(running.service, len(running.children)))

    def wait_healthy(self, name: str, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Return when the service's health check passes (at once where it has none)."""
        running = self._running[name]
        check = running.service.health_check
        while check is not None and not is_stopping():
            self.tend(running)
            if self._passes(running.service, check.command, check.timeout_seconds):
                return
            time.sleep(check.interval_seconds)

    def tend(self, running: Running | None = None) -> None:
        """Start ended replicas again; raises EnvironmentFault for one that keeps ending."""
        for each in [running] if running else list(self._running.values()):
            for number, child in enumerate(each.children):
                if child.exit_code is not None and each.service.restarts:
                    each.children[number] = self._restart(each, number, child)
                elif child.exit_code:
                    raise EnvironmentFault(_ended(child))

    def children(self, name: str) -> list[Child]:
        return self._running[name].children

    def stop(self, name: str | None = None) -> None:
        """Stop one service or all, the last started first, gracefully; what does not end in time is killed."""
        chosen = [self._running[name]] if name else list(self._running.values())[::-1]
        for running in chosen:
            for child in running.children:
                child.signal(signal.SIGTERM)
            for child in running.children:
                if not child.wait(STOP_SECONDS):
                    log.warning("%s does not end and is killed", child.name)
                child.kill()
            running.children.clear()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_one(self, service: Service, number: int) -> Child:
        name = service.name if service.replicas == 1 else f"{service.name}-{number}"
        return Child(name, service.command, self._environment(service), self.logs / f"{name}.log")

    def _restart(self, running: Running, number: int, child: Child) -> Child:
        now = time.monotonic()
        running.restarted_at = [then for then in running.restarted_at if now - then < 60] + [now]
        if len(running.restarted_at) > RESTARTS_PER_MINUTE:
            raise EnvironmentFault(_ended(child))
        log.warning("%s ended with status %s and is started again", child.name, child.exit_code)
        child.kill()  # what it had started itself
        time.sleep(min(2.0 ** len(running.restarted_at) / 4, 5.0))
        return self._start_one(running.service, number)

    def _environment(self, service: Service) -> dict[str, str]:
        """This process's environment, the service's own over it, and the programs of this Python first."""
        programs = os.pathsep.join([str(PROGRAMS), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {**os.environ, **service.environment, "PATH": programs, "PYTHONPATH": str(CHECKOUT)}

    def _passes(self, service: Service, command: tuple[str, ...], timeout_seconds: float) -> bool:
        try:
            done = subprocess.run(
                command,
                env=self._environment(service),
                timeout=timeout_seconds,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def in_order(services: Mapping[str, Service]) -> list[str]:
    """Names of services, each after those it needs."""
    ordered: list[str] = []

    def place(name: str) -> None:
        for need in services[name].needs:
            if need in services:
                place(need)
        if name not in ordered:
            ordered.append(name)

    for name in services:
        place(name)
    return ordered


def _ended(child: Child) -> str:
    return f"{child.name} ended with status {child.exit_code}; the end of {child.log}:\n{child.last_words()}"
