"""What a dead letter says: why a job was given up, where, after how many deliveries; its inputs stay in the job."""

from __future__ import annotations

import json
import re
import time
from typing import Any, cast

from redis import Redis
from rq.job import Job

from config import counters
from config.environment import node_name
from config.secrets import redact
from eaglefeed.errors import RejectedSample
from eaglefeed.records import Batch

COUNTED_AS = "counted_as"
"""In a letter's meta: the reason its samples are counted under as dead, as long as they are."""

MAX_REASON_CHARACTERS = 2000


def note_hand_back(job: Job, error: BaseException, pipe: Any) -> None:
    """Remember, in the job's meta, that it went back to its queue; such deliveries cost its samples nothing."""
    _write(job, pipe, handed_back=_count(job, "handed_back") + 1, last_fault=_sentence(error))


def note_death(job: Job, error: BaseException, redis: Redis) -> None:
    """Write the dead letter's reason into the job's meta and count its samples as given up, under that reason.

    It may run twice: Redis's answer to the first time may have been lost.
    """
    if counted_as(redis, job.key):
        return
    (run, num_samples), reason = run_and_samples(job), reason_word(error)
    with redis.pipeline() as pipe:
        _write(
            job,
            pipe,
            reason=_sentence(error),
            kind=type(error).__name__,
            node=node_name(),
            attempts=_count(job, "handed_back") + 1,
            failed_at=time.time(),
            run=run,
            samples=num_samples,
            **{COUNTED_AS: reason},
        )
        if run:
            counters.count(pipe, run, dead_amounts(reason, num_samples))
        pipe.execute()


def note_revival(meta: dict[str, Any], job_key: str, pipe: Any) -> None:
    """The letter goes back to its queue: from now on its samples are not counted as dead."""
    pipe.hset(job_key, "meta", json.dumps({name: value for name, value in meta.items() if name != COUNTED_AS}))


def dead_amounts(reason: str, num_samples: int) -> dict[str, int]:
    """What a dead letter adds to the counters; with a negative number, what its end takes off."""
    return {"dead": num_samples, f"dead:{reason}": num_samples}


def reason_word(error: BaseException) -> str:
    """``CorruptData`` as ``corrupt-data``: few words, the same for every batch, as a counter's field."""
    if isinstance(error, RejectedSample):
        return error.reason
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(error).__name__).lower()


def read_meta(redis: Redis, job_key: str) -> dict[str, Any]:
    """A job's meta as it is in Redis; {} for one that cannot be read."""
    try:
        meta = json.loads(cast("bytes | None", redis.hget(job_key, "meta")) or b"{}")
    except ValueError:
        return {}
    return meta if isinstance(meta, dict) else {}


def counted_as(redis: Redis, job_key: str) -> str:
    """The reason that a letter's samples are counted under now, "" while they are not."""
    return str(read_meta(redis, job_key).get(COUNTED_AS, ""))


def run_and_samples(job: Job) -> tuple[str, int]:
    """Run name and number of samples of a job's batch; ("", 0) for one that cannot be read."""
    try:
        payload = job.kwargs["payload"]
        return str(payload["run"]), len(payload["lengths"])
    except Exception:  # the letter of a job that nobody can read is written all the same
        return "", 0


def sample_ids(job: Job) -> list[str]:
    """Ids of the samples in a job's batch; [] for one that cannot be read."""
    try:
        return [sample.id for sample in Batch.from_payload(job.kwargs["payload"]).samples]
    except Exception:  # as above
        return []


def _write(job: Job, pipe: Any, **facts: Any) -> None:
    job.meta = {**job.meta, **facts} if isinstance(job.meta, dict) else facts
    pipe.hset(job.key, "meta", json.dumps(job.meta))


def _count(job: Job, name: str) -> int:
    value = job.meta.get(name, 0) if isinstance(job.meta, dict) else 0
    return value if isinstance(value, int) else 0


def _sentence(error: BaseException) -> str:
    return redact(str(error) or type(error).__name__)[:MAX_REASON_CHARACTERS]
