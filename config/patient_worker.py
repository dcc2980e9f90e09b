"""RQ's simple worker, patient with its Redis: where RQ's ends, this one waits, until Redis is back or it is told to."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq.worker import SimpleWorker

from config.retries import Backoff, is_redis_fault, is_transient
from config.secrets import redact

log = logging.getLogger(__name__)

Result = TypeVar("Result")

REDIS_RETRIES = 10
"""Within redis-py, for one command; what lasts longer is waited for by ``patiently``, which can be told to stop."""

STOP_PATIENCE = 3
"""Attempts that a worker which was told to stop still makes; the reaper gives back what it could not."""


class PatientWorker(SimpleWorker):
    """``stopping`` is set by the first signal."""

    no_patience = Retry(NoBackoff(), 1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connection.set_retry(Retry(ExponentialWithJitterBackoff(base=0.1, cap=1.0), REDIS_RETRIES))
        self.stopping = threading.Event()
        self.backoff = Backoff()

    def patiently(self, action: Callable[[], Result], what: str) -> Result:
        """The result of ``action``, tried until Redis takes it; a worker told to stop tries a few times only."""
        attempts = 0
        while True:
            try:
                return action()
            except RedisError as error:
                attempts += 1
                if not is_redis_fault(error) or (self.stopping.is_set() and attempts >= STOP_PATIENCE):
                    raise
                seconds = self.backoff.next_seconds()
                log.warning("cannot %s: %s; again in %.1f s", what, redact(str(error)), seconds)
                self._reconnect()
                self.stopping.wait(seconds)

    def pause_for(self, error: BaseException) -> None:
        """Wait, longer each time, after what may pass by itself; raises what will not."""
        if not is_transient(error):
            raise error
        seconds = self.backoff.next_seconds()
        log.warning("not ready: %s; again in %.1f s", redact(str(error)), seconds)
        if is_redis_fault(error):
            self._reconnect()
        else:
            self.heartbeat()
        self.stopping.wait(seconds)

    def _reconnect(self) -> None:
        """A replica that was promoted, or a server behind another address, is found by connecting anew."""
        with contextlib.suppress(RedisError):
            self.connection.connection_pool.disconnect(inuse_connections=False)

    # What RQ's own loop asks of Redis, and would end for.

    @property
    def should_run_maintenance_tasks(self) -> bool:
        """RQ's own cleaning would fail abandoned jobs; ``config/reaper.py`` hands them back instead."""
        return False

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        try:
            super().heartbeat(timeout, pipeline)
        except RedisError as error:
            log.warning("no heartbeat: %s", redact(str(error)))

    def check_for_suspension(self, burst: bool) -> None:
        self.patiently(lambda: super(PatientWorker, self).check_for_suspension(burst), "look for a suspension")

    def handle_warm_shutdown_request(self) -> None:
        self.stopping.set()

    def set_shutdown_requested_date(self) -> None:
        """For the record only: the signal's handler must not wait for Redis."""

    def request_stop(self, signum: int, frame: Any) -> None:
        self._stop_requested = True
        super().request_stop(signum, frame)

    def teardown(self) -> None:
        self.connection.set_retry(self.no_patience)
        with contextlib.suppress(RedisError, OSError):
            super().teardown()
