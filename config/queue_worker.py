"""The worker both kinds of node run: one queue, JSON, listed functions, a heartbeat that tells the truth.

``SimpleWorker`` keeps clients open across jobs and never forks; what it lacks (RQ declares its long jobs dead, and
needs 13 minutes to find really dead ones) is here: a thread renews the running job's heartbeat while the process and
what it depends on live, and a thread hands the jobs of dead workers back (measured in docs/queue.md).
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker import SimpleWorker

from config import reaper
from config.retries import Backoff
from eaglefeed.errors import EaglefeedError, RetryableError, UsageError

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_SECONDS = 5.0
HEARTBEAT_TTL_SECONDS = 20
WORKER_TTL_SECONDS = 30
REDIS_RETRIES = 60
"""With pauses of up to 3 s, a Redis that is away for two minutes is waited for."""


class NotListed(UsageError):
    """A job names a function that this worker does not run."""


class QueueWorker(SimpleWorker):
    """A worker of exactly one queue. Subclasses list their job functions and say when they are ready.

    Raises:
        UsageError: more than one queue, or another queue than the class serves.
    """

    job_functions: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.update(serializer=JSONSerializer, worker_ttl=WORKER_TTL_SECONDS)
        super().__init__(*args, **kwargs)
        if len(self.queues) != 1:
            raise UsageError(f"one queue a worker, not {', '.join(self.queue_names())}: a kill would lose jobs")
        self.connection.set_retry(Retry(ExponentialWithJitterBackoff(base=0.1, cap=3.0), REDIS_RETRIES))
        self.stopping = threading.Event()
        self.backoff = Backoff()

    # What a subclass says.

    def get_ready(self) -> None:
        """Open and prove what jobs need; called at the start, and again after a RetryableError.

        Raises RetryableError to be called again later.
        """

    def is_alive(self) -> bool:
        """Whether the running job may still end well; its heartbeat is renewed only while it may."""
        return True

    def around_job(self, job: Job) -> Any:
        """A context manager around each job, entered before it counts as started."""
        return _nothing()

    def recover(self, job: Job, error: BaseException) -> bool:
        """Whether a job that failed for good has been replaced by another one, and so is done."""
        return False

    # What RQ calls.

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """Import the job module first, so that a broken one shows its own error, then work."""
        for function in self.job_functions:
            importlib.import_module(function.rpartition(".")[0])
        threading.Thread(target=self._reap_for_ever, name="reaper", daemon=True).start()
        return bool(super().work(*args, **kwargs))

    def clean_registries(self) -> None:
        """RQ's own cleaning would fail abandoned jobs; the reaper hands them back instead."""

    def dequeue_job_and_maintain_ttl(self, *args: Any, **kwargs: Any) -> Any:
        """Take no job before this worker can do it: somebody else may."""
        self._wait_until_ready()
        return super().dequeue_job_and_maintain_ttl(*args, **kwargs)

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        return HEARTBEAT_TTL_SECONDS

    def handle_warm_shutdown_request(self) -> None:
        self.stopping.set()

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run one job under its heartbeat."""
        execution = self.prepare_execution(job)
        with self._heartbeat(job, execution):
            self.perform_job(job, queue, execution)
        self.set_state("idle")

    def perform_job(self, job: Job, queue: Queue, execution: Execution) -> bool:
        """Done, failed for good, or handed back: a RetryableError or a second signal costs the job nothing."""
        try:
            self._require_listed(job)
            self.prepare_job_execution(job, remove_from_intermediate_queue=True)
            job.started_at = now()
            with self.around_job(job):
                value = job.perform()
        except (RetryableError, SystemExit) as error:
            self.hand_back(job, queue, execution, error)
            if isinstance(error, SystemExit):
                raise
            return False
        except BaseException as error:
            if self.recover(job, error):
                return self._finish(job, queue, execution, None)
            log.error("job %s failed for good: %s", job.id, error)
            self._finalize_failure(job, queue, execution, sys.exc_info())
            return False
        self.backoff.reset()
        return self._finish(job, queue, execution, value)

    def hand_back(self, job: Job, queue: Queue, execution: Execution, error: BaseException) -> None:
        """Put the job at the head of its queue again, in one transaction."""
        log.warning("job %s is handed back: %s", job.id, error or "told to stop")
        with self.connection.pipeline() as pipe:
            self.cleanup_execution(job, pipeline=pipe, execution=execution)
            reaper.requeue(job, queue, pipe)
            pipe.execute()

    # What is behind it.

    def _finish(self, job: Job, queue: Queue, execution: Execution, value: Any) -> bool:
        try:
            self._finalize_success(job, queue, execution, value)
        except ValueError as error:  # RQ's word for an execution that is gone
            log.warning("job %s is done, but was taken for dead meanwhile and runs again: %s", job.id, error)
        return True

    def _require_listed(self, job: Job) -> None:
        if job.func_name not in self.job_functions:
            raise NotListed(f"{job.func_name!r} is not among {', '.join(sorted(self.job_functions))}")

    def _wait_until_ready(self) -> None:
        while not self.stopping.is_set():
            try:
                return self.get_ready()
            except RetryableError as error:
                seconds = self.backoff.next_seconds()
                log.warning("not ready: %s; again in %.1f s", error, seconds)
                self.heartbeat()
                self.stopping.wait(seconds)
            except EaglefeedError as error:  # nothing that waiting mends: RQ would show a traceback and exit with 0
                log.error("%s", error)
                raise SystemExit(error.exit_code) from error

    @contextmanager
    def _heartbeat(self, job: Job, execution: Execution) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._beat_until, args=(done, job, execution), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _beat_until(self, done: threading.Event, job: Job, execution: Execution) -> None:
        while not done.wait(HEARTBEAT_INTERVAL_SECONDS):
            try:
                if self.is_alive():
                    self.maintain_heartbeats(job, execution)
            except RedisError as error:
                log.warning("no heartbeat: %s", error)

    def _reap_for_ever(self) -> None:
        redis: Redis = self.connection
        while not self.stopping.wait(HEARTBEAT_INTERVAL_SECONDS):
            try:
                reaper.reap(redis, self.queues[0])
            except RedisError as error:
                log.warning("cannot look for abandoned jobs: %s", error)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
