"""Redis and the two kinds of queue, opened in one place: JSON only, and nothing kept that nobody reads."""

from __future__ import annotations

from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from rq import Queue
from rq.serializers import JSONSerializer

from config import names
from config.environment import redis_url

RESULT_TTL_SECONDS = 0
"""A finished job is not kept: counters and manifests say what became of it."""

REDIS_RETRIES = 50

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""A connection that says nothing for this long is lost, as after a firewall that forgot it: it is made anew."""

WAITING = ("queued", "started", "scheduled", "deferred")
"""RQ's words for a job that is still to be done."""

FAILURE_TTL_SECONDS = 30 * 24 * 3600
"""How long a dead letter waits for a person."""


def connect(url: str | None = None, retries: int = REDIS_RETRIES) -> Redis:
    """A client that rides out two minutes without a (writable) server, with jittered backoff; bytes in, bytes out."""
    return Redis.from_url(
        url or redis_url(),
        retry=Retry(ExponentialWithJitterBackoff(base=0.1, cap=3.0), retries=retries),
        retry_on_error=[RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError],
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        health_check_interval=15,
        socket_keepalive=True,
    )


def extract_queue(redis: Redis) -> Queue:
    """The one queue that all GPU nodes take batches from."""
    return Queue(names.EXTRACT_QUEUE, connection=redis, serializer=JSONSerializer)


def store_queue(redis: Redis, node: str) -> Queue:
    """The queue of one node's storage workers: the dumps lie on that node's disk."""
    return Queue(names.store_queue(node), connection=redis, serializer=JSONSerializer)


def job_status(redis: Redis, job_id: str) -> str:
    """RQ's word for how a job stands, "" where there is none; one question, as a job may end between two."""
    status = cast("bytes | None", redis.hget(f"rq:job:{job_id}", "status"))
    return (status or b"").decode()


def enqueue_extract(queue: Queue, payload: dict[str, Any], pipe: Any = None) -> None:
    """Enqueue a batch again, under its own id, in ``pipe``'s transaction; a producer's way: ``producer/enqueue.py``."""
    queue.enqueue_call(
        names.EXTRACT_JOB,
        kwargs={"payload": payload},
        job_id=payload["batch_id"],
        timeout=-1,
        result_ttl=RESULT_TTL_SECONDS,
        failure_ttl=FAILURE_TTL_SECONDS,
        pipeline=pipe,
    )
