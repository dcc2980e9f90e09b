"""The end of a job in Redis, in one step: its record is deleted by the worker that has begun it last, and nobody else.

RQ deletes it whoever comes. A worker that was taken for dead and ends all the same would then delete a job that has
been queued again, and the batch would have none (tests/unit/test_batch_states.py walks into it without this).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.exceptions import WatchError
from rq import get_current_job
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job
from rq.registry import StartedJobRegistry

from eaglefeed.errors import EaglefeedError


class JobForgotten(EaglefeedError):
    """The job's record is gone: Redis was emptied, or another worker has done the job."""


# KEYS: job, registry of started jobs, execution, the job's executions, the worker's executions, worker.
# ARGV: job:execution, execution id, worker name.
_END = """
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[2])
redis.call('SREM', KEYS[5], ARGV[1])
if redis.call('HGET', KEYS[1], 'status') ~= 'started' then return 0 end
if redis.call('HGET', KEYS[1], 'worker_name') ~= ARGV[3] then return 0 end
redis.call('DEL', KEYS[1], KEYS[4])
redis.call('HINCRBY', KEYS[6], 'successful_job_count', 1)
return 1
"""


def end(redis: Redis, job: Job, execution: Execution, worker_key: str, worker_name: str) -> bool:
    """Forget a job that is done; whether it was still this worker's. It may run twice."""
    keys = [
        job.key,
        StartedJobRegistry(job.origin, redis).key,
        execution.key,
        ExecutionRegistry(job.id, redis).key,
        execution.worker_executions_key,
        worker_key,
    ]
    return bool(redis.eval(_END, len(keys), *keys, execution.composite_key, execution.id, worker_name))


def require_remembered() -> None:
    """Raises JobForgotten when the running job's record is gone; called before anything of it is handed on.

    After Redis was emptied its samples are enqueued again, maybe in other batches; handed on, they would be stored
    twice. Nothing is lost by stopping: whoever ends a job has handed it on. Outside a worker there is nothing to ask.
    """
    job = get_current_job()
    if job is not None and not _has_record(job):
        raise _forgotten(job)


def is_remembered() -> bool:
    """Whether Redis still has the running job's record; True outside a worker."""
    job = get_current_job()
    return job is None or _has_record(job)


def hand_on(redis: Redis, job: Job | None, fill: Callable[[Any], object]) -> None:
    """Do what ``fill`` puts into a transaction, if ``job``'s record is still there at that very moment.

    Raises JobForgotten when it is not: Redis may be emptied between a look and a step.
    """
    pipe: Any
    while True:
        with redis.pipeline() as pipe:
            try:
                if job is not None:
                    pipe.watch(job.key)
                    if not pipe.hexists(job.key, "data"):
                        raise _forgotten(job)
                    pipe.multi()
                fill(pipe)
                pipe.execute()
                return
            except WatchError:  # a heartbeat, mostly
                continue


def _has_record(job: Job) -> bool:
    return bool(job.connection.hexists(job.key, "data"))


def _forgotten(job: Job) -> JobForgotten:
    return JobForgotten(f"the record of job {job.id} is gone: Redis was emptied, or another worker was faster")


def is_mine(redis: Redis, job: Job, worker_name: str) -> bool:
    """Whether the job is still the worker's that began it: not queued again, nor begun by another."""
    status, owner = redis.hmget(job.key, ["status", "worker_name"])
    return bool(status == b"started" and owner == worker_name.encode())
