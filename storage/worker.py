"""``rq worker --worker-class storage.worker.StorageWorker … store.NODE``: makes a node's dumps into shards."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, ClassVar

from redis.exceptions import RedisError
from rq.job import Job, JobStatus

from config import ending, names, nodes, queues
from config.breaker import Breaker
from config.environment import node_name
from config.queue_worker import QueueWorker
from eaglefeed.errors import DumpsSpoilt, UsageError
from storage import patience
from storage.leftovers import clear_leftovers
from storage.node import this_node

log = logging.getLogger(__name__)

CLEAR_INTERVAL_SECONDS = 60.0
MAX_RETURNS = 3
"""How often a batch goes back to extraction before it becomes a dead letter."""


class StorageWorker(QueueWorker):
    """One of a node's storage workers; it serves its own node's queue, because the dumps lie on that disk."""

    job_functions: ClassVar[frozenset[str]] = frozenset({names.STORE_JOB})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = names.store_queue(node_name())
        if self.queue_names() != [own]:
            raise UsageError(f"this node's queue is {own!r} (EAGLEFEED_NODE), not {self.queue_names()}")
        self._clear_at = 0.0
        patience.on_wait = self._publish_message

    def breaker(self) -> Breaker:
        limit = this_node().settings.workers.failures_before_pause
        return Breaker(self.connection, node_name(), names.store_queue(node_name()), limit)

    def on_pause(self, error: BaseException, message: str) -> None:
        nodes.publish(self.connection, node_name(), {"message": message[:500]})

    def get_ready(self) -> None:
        """Store and spool are proved usable; what dead processes, or an emptied Redis, left in the spool is cleared."""
        nodes.claim(self.connection, node_name(), nodes.spool_id(this_node().spool.path))
        this_node().spool.require_writable()
        if time.monotonic() >= self._clear_at:
            cleared = clear_leftovers(this_node(), CLEAR_INTERVAL_SECONDS if self._clear_at else 0.0)
            log.info("spool %s: %s", this_node().folder, cleared)
            self._clear_at = time.monotonic() + CLEAR_INTERVAL_SECONDS

    def on_end(self) -> None:
        if self._clear_at:
            nodes.release(self.connection, node_name(), nodes.spool_id(this_node().spool.path))

    def handle_warm_shutdown_request(self) -> None:
        """Work that waits for a store gives its job back."""
        super().handle_warm_shutdown_request()
        patience.stop_requested.set()

    def recover(self, job: Job, error: BaseException) -> bool:
        """A batch whose dumps are gone goes back to extraction, a few times: a failing disk is a person's business."""
        if not isinstance(error, DumpsSpoilt):
            nodes.publish(self.connection, node_name(), {"message": f"{job.id}: {error}"[:500]})
            return False
        payload = {**job.kwargs["payload"], "returned": job.kwargs["payload"].get("returned", 0) + 1}
        if payload["returned"] > MAX_RETURNS:
            return False
        log.warning("job %s: %s; its batch is extracted again", job.id, error)
        try:
            # One transaction: a crash in between would leave the batch without a job, and an extract worker that is
            # faster than this job's end must not take the batch for one that is being stored.
            ending.hand_on(self.connection, job, lambda pipe: self._send_back(job, payload, pipe))
        except ending.JobForgotten as forgotten:  # its samples are about to be enqueued anyway
            log.warning("%s", forgotten)
        return True

    def _send_back(self, job: Job, payload: dict[str, Any], pipe: Any) -> None:
        job.set_status(JobStatus.FAILED, pipeline=pipe)
        queues.enqueue_extract(queues.extract_queue(self.connection), payload, pipe)

    def perform_job(self, job: Job, queue: Any, execution: Any) -> bool:
        done = super().perform_job(job, queue, execution)
        if done:
            nodes.publish(self.connection, node_name(), {"last_sample_at": time.time(), "message": ""})
        return done

    def _publish_message(self, message: str) -> None:
        """For the page; work that waits for a store is not to fail for want of it."""
        with contextlib.suppress(RedisError):
            nodes.publish(self.connection, node_name(), {"message": message[:500]})
