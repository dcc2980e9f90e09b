"""``rq worker --worker-class workers.worker.EngineWorker … extract``: takes batches only while its engine is proved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

from rq.job import Job

from config import names, nodes, run_state
from config.breaker import Breaker
from config.environment import node_name
from config.queue_worker import QueueWorker
from config.run import RunSettings, load_node_run
from eaglefeed.errors import CorruptData, EngineGone, EnvironmentFault, SpoolFull, UsageError
from storage.ledger import ensure_run
from storage.node import store_of
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
        self._is_same_run = self._is_proved = False
        self._published_at = 0.0

    @cached_property
    def settings(self) -> RunSettings:
        return load_node_run()

    @cached_property
    def spool(self) -> Spool:
        """Opened; raises SpoolFull while dumps cannot wait there (full, read-only): somebody may make room."""
        spool = Spool(self.settings.spool)
        try:
            spool.open()
            spool.folder(self.settings.name)
        except (EnvironmentFault, OSError) as error:
            raise SpoolFull(str(error)) from error
        return spool

    @cached_property
    def spool_id(self) -> str:
        return nodes.spool_id(self.spool.path)

    def breaker(self) -> Breaker:
        limit = self.settings.workers.failures_before_pause
        return Breaker(self.connection, node_name(), names.EXTRACT_QUEUE, limit)

    def get_ready(self) -> None:
        """The name is ours, the spool can be written, the run is open; the engine answers, proved after an absence."""
        node, engine = jobs.this_node(), jobs.this_node().engine
        nodes.claim(self.connection, node.name, self.spool_id)
        self.spool.require_writable()
        run_state.require_extracting(self.connection, node.identity.run)
        if not self._is_same_run:
            ensure_run(store_of(self.settings), node.identity)
            self._is_same_run = True
        if not engine.is_answering():
            raise EngineGone(f"the engine at {', '.join(engine.urls)} does not answer")
        if not self._is_proved:
            self._publish("proving")
            prove_engine(engine, node.identity, self.spool.path)
            self._is_proved = True
        self._publish("ready")

    def on_pause(self, error: BaseException, message: str) -> None:
        """The page says why nothing is taken; an engine that was gone is proved again."""
        if isinstance(error, EngineGone):
            self._is_proved = False
        self._publish("down" if isinstance(error, EngineGone) else "paused", message)

    def on_end(self) -> None:
        if "spool" in self.__dict__:
            nodes.release(self.connection, node_name(), self.spool_id)

    def is_alive(self) -> bool:
        """A live process in front of a dead engine is no sign of life."""
        alive = jobs.this_node().engine.is_answering()
        self._publish("ready" if alive else "down")
        return alive

    @contextmanager
    def around_job(self, job: Job) -> Iterator[None]:
        """Room in the spool for all of the batch's dumps, waited for and held."""
        try:
            batch, tokens = job.kwargs["payload"]["batch_id"], sum(job.kwargs["payload"]["lengths"])
        except (KeyError, TypeError) as error:
            raise CorruptData(f"job {job.id} holds no batch: {error}") from error
        num_bytes = tokens * jobs.this_node().identity.bytes_per_token
        with self.spool.reserve(names.checked_name(batch, "batch id"), num_bytes, self.stopping.is_set, self._wait):
            yield

    def hand_back(self, job: Job, queue: Any, execution: Any, error: BaseException) -> None:
        super().hand_back(job, queue, execution, error)
        self._is_proved = self._is_proved and not isinstance(error, EngineGone)

    def _wait(self, usage: Usage) -> None:
        self._publish("paused", "the spool is full: storage is the narrow stage", usage)

    def _publish(self, state: nodes.EngineState, message: str = "", usage: Usage | None = None) -> None:
        """At most once a second: the page needs no more."""
        if time.monotonic() - self._published_at < 1 and state == "ready":
            return
        self._published_at = time.monotonic()
        nodes.publish(
            self.connection,
            node_name(),
            {
                "engine_state": state,
                "engine_version": jobs.this_node().identity.engine,
                "device": nodes.device_name(self.settings.engine.device),
                "message": message,
                **self._spool_fields(usage),
            },
        )

    def _spool_fields(self, usage: Usage | None) -> dict[str, str | int | float]:
        try:
            usage = usage or self.spool.usage()
            nodes.claim(self.connection, node_name(), self.spool_id)
        except (SpoolFull, OSError):
            return {}
        return {"spool_bytes": usage.spool_bytes, "spool_max_bytes": usage.limit_bytes}
