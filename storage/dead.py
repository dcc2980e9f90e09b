"""Dead letters: batches that were given up, with why, where and after how many deliveries; retry or drop them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, cast

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from config import counters, letters, names
from config.queued_job import QueuedJob
from eaglefeed.errors import UsageError
from storage.run_choice import required_redis

EXAMPLE = """examples:
  eaglefeed dead list
  eaglefeed dead show 6d1f…            a batch id, or the beginning of one
  eaglefeed dead retry --all           each goes back to the queue it came from
  eaglefeed dead drop 6d1f… --yes      its samples become unknown: a later `produce` enqueues them again"""

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. ``failed_at`` is Unix time, 0 when unknown; ``counted_as`` the reason in the counters."""

    job_id: str
    queue: str
    run: str
    samples: int
    reason: str
    kind: str
    node: str
    attempts: int
    failed_at: float
    counted_as: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "show", "retry", "drop"])
    parser.add_argument("letters", nargs="*", metavar="ID", help="job ids, or their beginnings")
    parser.add_argument("--all", action="store_true", help="retry or drop every dead letter")
    parser.add_argument("--redis", metavar="URL", help="default: REDIS_URL")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--yes", action="store_true", help="drop without asking")


def main(parsed: argparse.Namespace) -> int:
    """Exit codes: 0 done or no dead letter, 1 `list` found some, 2 no such dead letter."""
    redis = required_redis(parsed.redis)
    found = list(read_letters(redis))
    if parsed.action == "list":
        _print(found, parsed.json)
        return 1 if found else 0
    chosen = choose(found, parsed.letters, parsed.all and parsed.action != "show")
    if parsed.action == "show":
        for letter in chosen:
            print(json.dumps(describe(redis, letter), indent=1))
        return 0
    if parsed.action == "drop" and not parsed.yes and not _is_agreed(chosen):
        return 1
    act = retry if parsed.action == "retry" else drop
    for letter in chosen:
        act(redis, letter)
        print(f"{'queued again' if act is retry else 'dropped'}: {letter.job_id} ({letter.samples} samples)")
    return 0


def read_letters(redis: Redis) -> Iterator[Letter]:
    """All dead letters of the extract queue and of every node's store queue, oldest first, a page at a time."""
    for queue in _queues(redis):
        key = FailedJobRegistry(queue=queue).key
        for start in range(0, redis.zcard(key), _PAGE):
            for job_id in cast("list[bytes]", redis.zrange(key, start, start + _PAGE - 1)):
                letter = _letter(redis, queue, job_id.decode("utf-8", "replace"))
                if letter is not None:
                    yield letter


def choose(found: list[Letter], wanted: list[str], everything: bool) -> list[Letter]:
    """The letters that ``wanted`` names, by id or its beginning; raises UsageError for one that names none, or two."""
    if everything:
        return found
    if not wanted:
        raise UsageError("name dead letters (`eaglefeed dead list` shows them), or --all")
    chosen = []
    for begin in wanted:
        matching = [letter for letter in found if letter.job_id.startswith(begin)]
        if len(matching) != 1:
            raise UsageError(f"{begin!r} is the beginning of {len(matching)} dead letters; `eaglefeed dead list`")
        chosen += matching
    return chosen


def describe(redis: Redis, letter: Letter) -> dict[str, Any]:
    """The letter with its inputs: sample lengths, and for a store job the dumps it names."""
    kwargs = _job(redis, letter.job_id).kwargs if _is_readable(redis, letter) else {}
    payload = dict(kwargs.get("payload", {}))
    for packed in ("tokens", "masks"):
        if packed in payload:
            payload[packed] = f"{len(payload[packed])} characters, packed"
    rest = {name: value for name, value in kwargs.items() if name != "payload"}
    return {**asdict(letter), "payload": payload, **rest}


def retry(redis: Redis, letter: Letter) -> None:
    """Back to the end of its queue; its samples no longer count as given up. Raises UsageError as ``_take`` does."""
    queue = Queue(letter.queue, connection=redis, serializer=JSONSerializer)
    key = f"rq:job:{letter.job_id}"
    meta = letters.read_meta(redis, key)

    def requeue(pipe: Any) -> None:
        pipe.hset(key, "status", "queued")
        letters.note_revival(meta, key, pipe)
        pipe.persist(key)
        queue.push_job_id(letter.job_id, pipeline=pipe)

    _take(redis, letter, requeue)


def drop(redis: Redis, letter: Letter) -> None:
    """Forget the job and its samples: they are no longer known, counted or missed, and may be enqueued again."""
    sample_ids = letters.sample_ids(_job(redis, letter.job_id)) if _is_readable(redis, letter) else []

    def forget(pipe: Any) -> None:
        pipe.delete(f"rq:job:{letter.job_id}", f"rq:results:{letter.job_id}")
        if letter.run:
            forget_batch(pipe, letter.run, letter.job_id.removeprefix("store-"), sample_ids)

    _take(redis, letter, forget)


def forget_batch(pipe: Any, run: str, batch_id: str, sample_ids: list[str]) -> None:
    """Within the caller's transaction: what the producer wrote down of a batch is undone."""
    if sample_ids:
        pipe.srem(names.known_key(run), *(bytes.fromhex(each) for each in sample_ids))
        pipe.hdel(names.batches_key(run), bytes.fromhex(batch_id))
        counters.count(pipe, run, {"unique": -len(sample_ids), "batches": -1})


def _take(redis: Redis, letter: Letter, act: Callable[[Any], None]) -> None:
    """End a letter, its counts and what ``act`` adds in one transaction, so that two people do it once.

    Raises UsageError when it is no dead letter any more.
    """
    registry = FailedJobRegistry(queue=Queue(letter.queue, connection=redis, serializer=JSONSerializer)).key

    def change(pipe: Any) -> None:
        if pipe.zscore(registry, letter.job_id) is None:
            raise UsageError(f"{letter.job_id} is no dead letter any more: somebody has retried or dropped it")
        pipe.multi()
        pipe.zrem(registry, letter.job_id)
        act(pipe)
        if letter.run and letter.counted_as:
            counters.count(pipe, letter.run, letters.dead_amounts(letter.counted_as, -letter.samples))

    redis.transaction(change, registry)


def _queues(redis: Redis) -> list[Queue]:
    found = sorted(
        name
        for key in cast("set[bytes]", redis.smembers(Queue.redis_queues_keys))
        if (name := key.decode().removeprefix(Queue.redis_queue_namespace_prefix)) == names.EXTRACT_QUEUE
        or name.startswith("store.")
    )
    return [Queue(name, connection=redis, serializer=JSONSerializer) for name in found]


def _letter(redis: Redis, queue: Queue, job_id: str) -> Letter | None:
    try:
        job = _job(redis, job_id)
    except NoSuchJobError:
        return None
    meta = job.meta if isinstance(job.meta, dict) else {}
    run, samples = (str(meta["run"]), int(meta["samples"])) if "samples" in meta else letters.run_and_samples(job)
    text = {name: str(meta.get(name, "")) for name in ("reason", "kind", "node", letters.COUNTED_AS)}
    return Letter(
        job_id, queue.name, run, samples, **text, attempts=meta.get("attempts", 0), failed_at=meta.get("failed_at", 0.0)
    )


def _job(redis: Redis, job_id: str) -> QueuedJob:
    return cast("QueuedJob", QueuedJob.fetch(job_id, connection=redis, serializer=JSONSerializer))


def _is_readable(redis: Redis, letter: Letter) -> bool:
    return letters.run_and_samples(_job(redis, letter.job_id)) != ("", 0)


def _print(found: list[Letter], as_json: bool) -> None:
    for letter in found:
        if as_json:
            print(json.dumps(asdict(letter)))
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.failed_at)) if letter.failed_at else "?"
        print(f"{letter.job_id}  {letter.queue}  {letter.samples} samples  node {letter.node or '?'}  {when}")
        print(
            f"    {letter.kind or 'failed'} after {letter.attempts or '?'} deliveries: {letter.reason or 'no reason'}"
        )
    if not as_json:
        total = sum(letter.samples for letter in found)
        print(f"{len(found)} dead letters, {total} samples", file=sys.stderr)


def _is_agreed(chosen: list[Letter]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("drop asks on a terminal; elsewhere say --yes")
    total = sum(letter.samples for letter in chosen)
    return input(f"Drop {len(chosen)} dead letters with {total} samples? [y/N] ").strip().lower() in ("y", "yes")
