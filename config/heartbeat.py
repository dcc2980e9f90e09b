"""Two threads behind a worker: one renews the running job's heartbeat, one hands back the jobs of dead workers."""

from __future__ import annotations

import logging
import threading
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue

from config import reaper
from config.secrets import redact

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_SECONDS = 5.0
HEARTBEAT_TTL_SECONDS = 20
"""Four beats: a Redis that is away for a few seconds makes nobody dead."""


class Heartbeat(threading.Thread):
    """Beats while the block runs and the worker's ``is_alive`` says that its job may still end well."""

    def __init__(self, worker: Any, job: Job, execution: Execution) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._worker, self._job, self._execution = worker, job, execution
        self._done = threading.Event()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: a beat may be waiting for an engine that hangs. One beat too many is harmless (RQ's XX flags).
        self._done.set()
        self.join(1.0)

    def run(self) -> None:
        while not self._done.wait(HEARTBEAT_INTERVAL_SECONDS):
            try:
                if self._worker.is_alive() and not self._done.is_set():
                    self._worker.maintain_heartbeats(self._job, self._execution)
            except RedisError as error:
                log.warning("no heartbeat: %s", redact(str(error)))
            except Exception:
                log.exception("the health check itself failed; no heartbeat")


class Reaping(threading.Thread):
    """Looks for abandoned jobs of one queue for as long as the worker works."""

    def __init__(self, redis: Redis, queue: Queue, stopping: threading.Event) -> None:
        super().__init__(name="reaper", daemon=True)
        self._redis, self._queue, self._stopping = redis, queue, stopping

    def run(self) -> None:
        while not self._stopping.wait(HEARTBEAT_INTERVAL_SECONDS):
            try:
                reaper.reap(self._redis, self._queue)
            except RedisError as error:
                log.warning("cannot look for abandoned jobs: %s", redact(str(error)))
            except Exception:
                log.exception("the reaper failed; it goes on")
