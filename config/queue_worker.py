"""The worker both kinds of node run: one queue, JSON, listed functions, a heartbeat that tells the truth.

``SimpleWorker`` keeps clients open across jobs and never forks; what it lacks (RQ declares its long jobs dead, and
needs 13 minutes to find really dead ones) is here: a thread renews the running job's heartbeat while the process and
what it depends on live, and a thread hands the jobs of dead workers back (measured in docs/queue.md).
"""

from __future__ import annotations

import importlib
import logging
from contextlib import nullcontext, suppress
from typing import Any, ClassVar

from redis.exceptions import RedisError
from rq.exceptions import StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now

from config import ending, letters, reaper
from config.breaker import Breaker
from config.heartbeat import HEARTBEAT_TTL_SECONDS, Heartbeat, Reaping
from config.patient_worker import PatientWorker
from config.queued_job import QueuedJob
from config.redis_checks import check_redis
from config.retries import is_transient
from config.secrets import redact, redact_logs
from eaglefeed.errors import EaglefeedError, UsageError

log = logging.getLogger(__name__)

WORKER_TTL_SECONDS = 30
IDLE_SECONDS = 5


class NotListed(UsageError):
    """A job names a function that this worker does not run."""


class NothingWhole(EaglefeedError):
    """Not one sample of a batch came through."""


class QueueWorker(PatientWorker):
    """A worker of exactly one queue. Subclasses list their job functions and say when they are ready.

    Raises:
        UsageError: more than one queue, or another queue than the class serves.
    """

    job_functions: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.update(serializer=JSONSerializer, worker_ttl=WORKER_TTL_SECONDS, job_class=QueuedJob)
        super().__init__(*args, **kwargs)
        if len(self.queues) != 1:
            raise UsageError(f"one queue a worker, not {', '.join(self.queue_names())}: a kill would lose jobs")

    # What a subclass says.

    def get_ready(self) -> None:
        """Open and prove what jobs need; called before each job.

        Raises RetryableError to be called again later.
        """

    def is_alive(self) -> bool:
        """Whether the running job may still end well; its heartbeat is renewed only while it may."""
        return True

    def around_job(self, job: Job) -> Any:
        """A context manager around each job, entered when its heartbeat beats already."""
        return nullcontext()

    def recover(self, job: Job, error: BaseException) -> bool:
        """Whether a job that failed for good has been replaced by another one, and so is done."""
        return False

    def breaker(self) -> Breaker | None:
        """What stops this node's workers of this queue when everything fails."""
        return None

    def on_pause(self, error: BaseException, message: str) -> None:
        """Called when the worker begins to wait, with why; ``message`` holds no secret."""

    def on_end(self) -> None:
        """Called at the end, Redis willing."""

    # What RQ calls.

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """Import the job module first, so that a broken one shows its own error; look at Redis; then work."""
        for function in self.job_functions:
            importlib.import_module(function.rpartition(".")[0])
        self.patiently(lambda: check_redis(self.connection), "look at Redis's settings")
        Reaping(self.connection, self.queues[0], self.stopping).start()
        return bool(super().work(*args, **kwargs))

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        redact_logs()

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """Take no job before this worker can do it: somebody else may. An idle one looks again every few seconds."""
        is_patient = timeout is not None and max_idle_time is None
        while True:
            self._wait_until_ready()
            if self.stopping.is_set():
                raise StopRequested()
            try:
                found = super().dequeue_job_and_maintain_ttl(timeout, IDLE_SECONDS if is_patient else max_idle_time)
                if found is not None or not is_patient:
                    return found
            except StopRequested:
                raise
            except Exception as error:
                self.pause_for(error)

    def teardown(self) -> None:
        self.connection.set_retry(self.no_patience)
        with suppress(RedisError, OSError):
            self.on_end()
        super().teardown()

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        return HEARTBEAT_TTL_SECONDS

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run one job under its heartbeat."""
        execution = self.patiently(lambda: self.prepare_execution(job), f"begin job {job.id}")
        self._rest_seconds = 0.0
        with Heartbeat(self, job, execution):
            self.perform_job(job, queue, execution)
        self.stopping.wait(self._rest_seconds)  # somebody else may take what was handed back meanwhile
        self.patiently(lambda: self.set_state("idle"), "say that it is idle")

    def perform_job(self, job: Job, queue: Queue, execution: Execution) -> bool:
        """Done, failed for good, or handed back: a transient fault or a second signal costs the job nothing."""
        try:
            self.prepare_job_execution(job, remove_from_intermediate_queue=True)
            self._require_listed(job)
            job.started_at = now()
            with self.around_job(job):
                value = job.perform()
        except SystemExit as error:
            self.connection.set_retry(self.no_patience)
            self.hand_back(job, queue, execution, error)
            raise
        except BaseException as error:
            return self._conclude(job, queue, execution, error)
        self._finish(job, execution)
        self._tell_breaker(value)
        return True

    def hand_back(self, job: Job, queue: Queue, execution: Execution, error: BaseException) -> None:
        """Put the job at the head of its queue again, in one transaction."""
        log.warning("job %s is handed back: %s", job.id, redact(str(error)) or "told to stop")
        is_mine = ending.is_mine(self.connection, job, self.name)
        with self.connection.pipeline() as pipe:
            self.cleanup_execution(job, pipeline=pipe, execution=execution)
            if is_mine:
                reaper.requeue(job, queue, pipe)
                letters.note_hand_back(job, error, pipe)
            pipe.execute()

    # What is behind it.

    def _conclude(self, job: Job, queue: Queue, execution: Execution, error: BaseException) -> bool:
        """A job that raised: handed back, replaced, or a dead letter."""
        if is_transient(error):
            self.patiently(lambda: self.hand_back(job, queue, execution, error), f"hand back job {job.id}")
            self._rest_seconds = self.backoff.next_seconds()
            return False
        if isinstance(error, ending.JobForgotten):
            log.warning("%s", error)
        if isinstance(error, ending.JobForgotten) or self.patiently(
            lambda: self.recover(job, error), f"replace job {job.id}"
        ):
            self._finish(job, execution)
            return True
        log.error("job %s failed for good: %s", job.id, redact(str(error)))
        self.patiently(lambda: self._bury(job, queue, execution, error), f"write the dead letter of job {job.id}")
        self._tell_breaker(error)
        return False

    def _bury(self, job: Job, queue: Queue, execution: Execution, error: BaseException) -> None:
        if not ending.is_mine(self.connection, job, self.name):
            return  # taken for dead meanwhile: another worker's outcome counts
        letters.note_death(job, error, self.connection)
        self._finalize_failure(job, queue, execution, (type(error), error, error.__traceback__))

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """RQ would log the job's whole arguments."""

    def handle_job_failure(self, job: Job, queue: Queue, *args: Any, exc_string: str = "", **kwargs: Any) -> None:
        super().handle_job_failure(job, queue, *args, exc_string=redact(exc_string), **kwargs)

    def _finish(self, job: Job, execution: Execution) -> None:
        is_mine = self.patiently(
            lambda: ending.end(self.connection, job, execution, self.key, self.name), f"end job {job.id}"
        )
        self.executions.pop(execution.id, None)
        log.info("job %s is done%s", job.id, "" if is_mine else "; it was replaced, or taken for abandoned, meanwhile")
        self.backoff.reset()

    def _tell_breaker(self, outcome: Any) -> None:
        """A job that did nothing whole (0), or died, counts against the node; any other outcome is a success."""
        breaker = self.breaker()
        if breaker is None:
            return
        if outcome == 0:
            outcome = NothingWhole("every sample of a batch was rejected")
        if isinstance(outcome, BaseException):
            self.patiently(lambda: breaker.failed(redact(str(outcome))), "count a failure")
        else:
            self.patiently(breaker.succeeded, "count a success")

    def _require_listed(self, job: QueuedJob) -> None:
        job.require_fit()
        if job.func_name not in self.job_functions:
            raise NotListed(f"{str(job.func_name)[:200]!r} is not among {', '.join(sorted(self.job_functions))}")

    def _wait_until_ready(self) -> None:
        while not self.stopping.is_set():
            try:
                breaker = self.breaker()
                if breaker is not None:
                    breaker.require_closed()
                return self.get_ready()
            except EaglefeedError as error:
                if not is_transient(error):  # nothing that waiting mends: RQ would show a traceback and exit with 0
                    log.error("%s", redact(str(error)))
                    raise SystemExit(error.exit_code) from error
                self.on_pause(error, redact(str(error)))
                self.pause_for(error)
            except Exception as error:
                self.pause_for(error)
