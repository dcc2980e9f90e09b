"""What a dead letter says: why a job was given up, where, after how many deliveries; its inputs stay in the job."""

from __future__ import annotations

import json
import time
from typing import Any

from redis import Redis
from rq.job import Job

from config import counters
from config.environment import node_name
from config.secrets import redact
from eaglefeed.records import Batch

MAX_REASON_CHARACTERS = 2000


def note_hand_back(job: Job, error: BaseException, pipe: Any) -> None:
    """Remember, in the job's meta, that it went back to its queue; such deliveries cost its samples nothing."""
    _write(job, pipe, handed_back=_count(job, "handed_back") + 1, last_fault=_sentence(error))


def note_death(job: Job, error: BaseException, redis: Redis) -> None:
    """Write the dead letter's reason into the job's meta and count its samples as given up."""
    run, num_samples = run_and_samples(job)
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
        )
        if run:
            counters.count(pipe, run, {"dead": num_samples})
        pipe.execute()


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
