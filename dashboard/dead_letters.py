"""Dead letters: batches whose last attempt failed, with why; and another chance for one of them."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis import Redis
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from eaglefeed.errors import UsageError

SHOWN_PER_QUEUE = 25
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One batch in RQ's failed registry; ``failed_at`` is RQ's UTC text."""

    job_id: str
    queue: str
    description: str
    failed_at: str
    reason: str


def list_dead(redis: Redis, queues: Iterable[str], limit: int = SHOWN_PER_QUEUE) -> tuple[DeadLetter, ...]:
    """The latest dead letters of each queue, without RQ's own clean-up (which writes)."""
    found = []
    for queue in queues:
        ids = [_text(job_id) for job_id in _members(redis, queue, limit)]
        pipe = redis.pipeline(transaction=False)
        for job_id in ids:
            pipe.hmget(f"rq:job:{job_id}", "description", "ended_at")
            pipe.xrevrange(f"rq:results:{job_id}", "+", "-", 1)
        answers = iter(pipe.execute())
        for job_id in ids:
            description, ended_at = (_text(value or b"") for value in next(answers))
            found.append(DeadLetter(job_id, queue, description, ended_at, _reason(next(answers))))
    return tuple(found)


def retry(redis: Redis, queue: str, job_id: str) -> None:
    """Put one dead letter back at the end of its queue.

    Raises UsageError when it is no dead letter (any more).
    """
    registry = FailedJobRegistry(queue=Queue(queue, connection=redis, serializer=JSONSerializer))
    try:
        registry.requeue(job_id)
    except (InvalidJobOperation, NoSuchJobError) as error:
        raise UsageError(f"{job_id} is no dead letter of {queue} any more") from error


def _members(redis: Redis, queue: str, limit: int) -> Any:
    return redis.zrevrange(f"rq:failed:{queue}", 0, limit - 1)


def _reason(results: Any) -> str:
    """The last line of the last attempt's traceback: the error and its message, without passwords."""
    if not results:
        return "no result was kept"
    packed = results[0][1].get(b"exc_string", b"")
    try:
        trace = zlib.decompress(base64.b64decode(packed)).decode("utf-8", "replace")
    except (binascii.Error, zlib.error, ValueError):
        return "its traceback cannot be read"
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return _PASSWORD.sub("***@", lines[-1])[:500] if lines else "no traceback"


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
