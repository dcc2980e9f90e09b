"""``rq worker --worker-class workers.worker.EngineWorker … extract``: takes batches only while its engine is proved."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, ClassVar

from rq.job import Job

from config import names, nodes
from config.environment import node_name
from config.queue_worker import QueueWorker
from config.run import load_node_run
from eaglefeed.errors import EngineGone, RetryableError, UsageError
from storage.spool import Spool, Usage
from workers import jobs
from workers.startup_proof import prove_engine


class EngineWorker(QueueWorker):
    """One of a node's workers in front of its engine; two of them keep the GPU from waiting for a job's tail."""

    job_functions: ClassVar[frozenset[str]] = frozenset({names.EXTRACT_JOB})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.queue_names() != [names.EXTRACT_QUEUE]:
            raise UsageError(f"an EngineWorker serves the queue {names.EXTRACT_QUEUE!r}, not {self.queue_names()}")
        self._is_proved = False
        self._published_at = 0.0

    @cached_property
    def spool(self) -> Spool:
        spool = Spool(load_node_run().spool)
        spool.open()
        return spool

    def get_ready(self) -> None:
        """The engine answers and, after each absence, has passed its proof again."""
        engine = jobs.this_node().engine
        if not engine.is_answering():
            self._is_proved = False
            self._publish("down")
            raise EngineGone(f"the engine at {', '.join(engine.urls)} does not answer")
        if not self._is_proved:
            self._publish("proving")
            prove_engine(engine, jobs.this_node().identity, self.spool.path)
            self._is_proved = True
        self._publish("ready")

    def is_alive(self) -> bool:
        """A live process in front of a dead engine is no sign of life."""
        alive = jobs.this_node().engine.is_answering()
        self._publish("ready" if alive else "down")
        return alive

    def around_job(self, job: Job) -> AbstractContextManager[None]:
        """Room in the spool for all of the batch's dumps, waited for and held."""
        tokens = sum(job.kwargs["payload"]["lengths"])
        return self.spool.reserve(
            job.kwargs["payload"]["batch_id"],
            tokens * jobs.this_node().identity.bytes_per_token,
            self.stopping.is_set,
            lambda usage: self._publish("paused", "the spool is full: storage is the narrow stage", usage),
        )

    def hand_back(self, job: Job, queue: Any, execution: Any, error: BaseException) -> None:
        super().hand_back(job, queue, execution, error)
        if isinstance(error, RetryableError):
            self._is_proved = self._is_proved and not isinstance(error, EngineGone)

    def _publish(self, state: nodes.EngineState, message: str = "", usage: Usage | None = None) -> None:
        """At most once a second: the page needs no more."""
        if time.monotonic() - self._published_at < 1 and state == "ready":
            return
        self._published_at = time.monotonic()
        usage = usage or self.spool.usage()
        node = jobs.this_node()
        nodes.publish(
            self.connection,
            node_name(),
            {
                "engine_state": state,
                "engine_version": node.identity.engine,
                "device": "cpu" if load_node_run().engine.device == "cpu" else "auto",
                "spool_bytes": usage.spool_bytes,
                "spool_max_bytes": usage.limit_bytes,
                "message": message,
            },
        )
