"""The real ``rq worker`` as a subprocess, and a queue that its tests fill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

CHECKOUT = Path(__file__).resolve().parent.parent


class RqWorker:
    """``rq worker`` with a worker class on one queue; its log goes to ``log``."""

    def __init__(
        self,
        url: str,
        queue: str,
        log: Path,
        worker_class: str = "tests.queue_jobs.PlainWorker",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        rq = str(Path(sys.executable).parent / "rq")
        command = [rq, "worker", "--worker-class", worker_class, "--serializer", "rq.serializers.JSONSerializer", queue]
        paths = {"PYTHONPATH": str(CHECKOUT), "REDIS_URL": url, "RQ_REDIS_URL": url, "EAGLEFEED_NODE": "test-node"}
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, cwd=CHECKOUT, env={**os.environ, **paths, **(environment or {})}, stdout=file, stderr=file
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def __enter__(self) -> RqWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)


def enqueue(redis: Redis, queue: str, function: str, payload: Mapping[str, Any], job_id: str, **options: Any) -> None:
    Queue(queue, connection=redis, serializer=JSONSerializer).enqueue_call(
        f"tests.queue_jobs.{function}",
        kwargs={"payload": {"run": "r", "lengths": [1], "batch_id": job_id, **payload}},
        job_id=job_id,
        timeout=-1,
        result_ttl=0,
        **options,
    )


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def until(is_true: Any, seconds: float, what: str) -> float:
    """Seconds until ``is_true()``; raises TimeoutError naming ``what``."""
    begun = time.monotonic()
    while not is_true():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
    return time.monotonic() - begun
