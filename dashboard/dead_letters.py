"""Dead letters as the page shows them, and another chance for one of them."""

from __future__ import annotations

import base64
import binascii
import json
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis import Redis

from config.secrets import redact
from storage import dead

SHOWN_PER_QUEUE = 25
MAX_REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One batch that was given up; ``where`` is its queue, node and attempts, ``failed_at`` UTC text."""

    job_id: str
    queue: str
    description: str
    where: str
    failed_at: str
    reason: str


def list_dead(redis: Redis, queues: Iterable[str], limit: int = SHOWN_PER_QUEUE) -> tuple[DeadLetter, ...]:
    """The latest dead letters of each queue: a few fields of each job, and nothing of RQ's clean-up (which writes)."""
    found = []
    for queue in queues:
        ids = [_text(job_id) for job_id in _latest(redis, queue, limit)]
        pipe = redis.pipeline(transaction=False)
        for job_id in ids:
            pipe.hmget(f"rq:job:{job_id}", "description", "meta", "ended_at")
            pipe.xrevrange(f"rq:results:{job_id}", "+", "-", 1)
        answers = iter(pipe.execute())
        found += [_letter(job_id, queue, next(answers), next(answers)) for job_id in ids]
    return tuple(found)


def retry(redis: Redis, job_id: str) -> None:
    """Put one dead letter back into its queue, as `eaglefeed dead retry` does.

    Raises UsageError when it is no dead letter (any more).
    """
    (letter,) = dead.choose(list(dead.read_letters(redis)), [job_id], everything=False)
    dead.retry(redis, letter)


def _latest(redis: Redis, queue: str, limit: int) -> Any:
    return redis.zrevrange(f"rq:failed:{queue}", 0, limit - 1)


def _letter(job_id: str, queue: str, fields: Any, results: Any) -> DeadLetter:
    description, meta_text, ended_at = (_text(value or b"") for value in fields)
    meta = _meta(meta_text)
    reason = f"{meta.get('kind', '')}: {meta['reason']}" if meta.get("reason") else _last_line(results)
    where = [f"queue {queue}"]
    where += [f"node {meta['node']}"] if meta.get("node") else []
    where += [f"{meta['attempts']} deliveries"] if meta.get("attempts") else []
    at = meta.get("failed_at")
    failed_at = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
        if isinstance(at, float)
        else ended_at[:19].replace("T", " ")
    )
    return DeadLetter(job_id, queue, description, ", ".join(where), failed_at, redact(reason)[:MAX_REASON_CHARACTERS])


def _meta(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(results: Any) -> str:
    """The last line of the last attempt's traceback: the error and its message."""
    packed = results[0][1].get(b"exc_string", b"") if results else b""
    try:
        trace = zlib.decompress(base64.b64decode(packed)).decode("utf-8", "replace")
    except (binascii.Error, zlib.error, ValueError):
        return "no reason was kept"
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was kept"


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
