"""Job functions and a worker class for the queue's tests, run by the real ``rq worker`` in subprocesses."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from config.breaker import Breaker
from config.queue_worker import QueueWorker
from eaglefeed.errors import CorruptData, EngineGone

_PREFIX = "tests.queue_jobs"


def note(path: str, text: str) -> None:
    """Append a line in one write: who has run what."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{text} {os.getpid()} {time.time():.3f}\n".encode())
    os.close(descriptor)


def work(payload: dict[str, Any]) -> None:
    """Note the begin, take ``seconds``, note the end."""
    note(payload["path"], f"begin {payload['batch_id']}")
    time.sleep(payload.get("seconds", 0))
    note(payload["path"], f"end {payload['batch_id']}")


def fail_for_good(payload: dict[str, Any]) -> None:
    raise CorruptData(f"as ordered, with the key {os.environ.get('AWS_SECRET_ACCESS_KEY', '')}")


def fail_for_now(payload: dict[str, Any]) -> None:
    """Fails until the file ``payload['path']`` exists."""
    if not Path(payload["path"]).exists():
        raise EngineGone("not yet")


def not_listed(payload: dict[str, Any]) -> None:
    note(payload["path"], "must never run")


class PlainWorker(QueueWorker):
    """Lists the functions above but one."""

    job_functions: ClassVar[frozenset[str]] = frozenset(
        {f"{_PREFIX}.work", f"{_PREFIX}.fail_for_good", f"{_PREFIX}.fail_for_now"}
    )

    def breaker(self) -> Breaker:
        return Breaker(self.connection, "test-node", self.queues[0].name, 4)
