"""Hands back the jobs of workers that died: found by a heartbeat that ran out, given to the next worker.

A heartbeat is the time to live of an execution's key, so Redis's clock alone decides: nodes whose clocks are minutes
apart do not take each other for dead (RQ's own registry compares the clocks of two machines).
"""

from __future__ import annotations

import logging
from typing import Any, cast

from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.executions import Execution, ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.utils import parse_composite_key

from config.queued_job import QueuedJob

log = logging.getLogger(__name__)

LOCK_SECONDS = 4
TAKEN_SECONDS = 10
"""A job taken from the queue and not started within this time was taken by a worker that died in between."""


def reap(redis: Redis, queue: Queue) -> list[str]:
    """Requeue what dead workers held; the ids of the jobs. One worker of a queue does it at a time."""
    if not redis.set(f"eaglefeed:reaper:{queue.name}", "1", nx=True, ex=LOCK_SECONDS):
        return []
    return _reap_started(redis, queue) + _reap_taken(redis, queue)


def requeue(job: Job, queue: Queue, pipe: Any) -> None:
    """Put a job at the head of its queue, within the caller's transaction."""
    job.set_status(JobStatus.QUEUED, pipeline=pipe)
    pipe.delete(ExecutionRegistry(job.id, connection=pipe).key)
    pipe.persist(job.key)
    queue.push_job_id(job.id, pipeline=pipe, at_front=True)


def _reap_started(redis: Redis, queue: Queue) -> list[str]:
    registry = StartedJobRegistry(queue=queue)
    reaped = []
    for entry in cast("list[bytes]", redis.zrange(registry.key, 0, -1)):
        job_id, execution_id = parse_composite_key(entry.decode())
        if redis.exists(Execution(execution_id, job_id, redis).key):
            continue
        with redis.pipeline() as pipe:
            pipe.zrem(registry.key, entry)
            # The dead execution's record has expired; RQ would look for it when the job ends, and end the worker.
            pipe.zrem(ExecutionRegistry(job_id, redis).key, execution_id)
            job = _job(job_id, redis)
            if job is not None and job.get_status(refresh=False) == JobStatus.STARTED:
                requeue(job, queue, pipe)
                reaped.append(job_id)
                log.warning("job %s was abandoned by a worker that died; it is queued again", job_id)
            pipe.execute()
    return reaped


def _reap_taken(redis: Redis, queue: Queue) -> list[str]:
    """Jobs between the queue and a worker; they are seen twice, ``TAKEN_SECONDS`` of Redis's clock apart."""
    waiting = IntermediateQueue(queue.key, connection=redis)
    reaped = []
    now = redis.time()[0]
    for job_id in waiting.get_job_ids():
        seen_key = waiting.get_first_seen_key(job_id)
        if redis.set(seen_key, now, nx=True, ex=3600):
            continue
        if now - int(float(cast("bytes", redis.get(seen_key) or now))) <= TAKEN_SECONDS:
            continue
        job = _job(job_id, redis)
        with redis.pipeline() as pipe:
            pipe.lrem(waiting.key, 0, job_id)
            pipe.delete(seen_key)
            if job is not None and job.get_status(refresh=False) == JobStatus.QUEUED:
                requeue(job, queue, pipe)
                reaped.append(job_id)
                log.warning("job %s was taken by a worker that died before it began; it is queued again", job_id)
            pipe.execute()
    return reaped


def _job(job_id: str, redis: Redis) -> Job | None:
    try:
        return QueuedJob.fetch(job_id, connection=redis, serializer=JSONSerializer)
    except NoSuchJobError:
        return None
