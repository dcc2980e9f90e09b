"""Pause, resume, cancel or close a run, or show how it stands.

pause    GPU nodes take no further batch; what is extracted is stored; a producer may go on until the queue is full
resume   the run is open again; nodes that paused after failures go on as well
cancel   queued batches are dropped and their samples forgotten; what is in work is finished; nothing is added any more
close    only when nothing is pending: the store remembers that the run is complete, and nothing is added any more
"""

from __future__ import annotations

import argparse
import json
import time
from typing import cast

from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.serializers import JSONSerializer

from config import breaker, counters, letters, queues, run_state
from config.queued_job import QueuedJob
from eaglefeed.errors import UsageError
from storage.dead import forget_batch
from storage.run_choice import ChosenRun, add_run_arguments, chosen_run, required_redis

EXAMPLE = """examples:
  eaglefeed run-state pause --run config/smollm2.toml
  eaglefeed run-state show --run config/smollm2.toml --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["pause", "resume", "cancel", "close", "show"])
    add_run_arguments(parser, with_redis=True)
    parser.add_argument("--json", action="store_true", help="`show` as one JSON object")


def main(parsed: argparse.Namespace) -> int:
    """Exit codes: 0 done, 2 the run cannot be closed (yet)."""
    chosen, redis = chosen_run(parsed), required_redis(parsed.redis)
    act = {"pause": _pause, "resume": _resume, "cancel": _cancel, "close": _close}.get(parsed.action)
    said = act(redis, chosen) if act else ""
    if said:
        print(said)
    else:
        _show(redis, chosen, parsed.json)
    return 0


def closed_key(run: str) -> str:
    """The object in the store that says that a run is complete."""
    return f"{run}/closed.json"


def _pause(redis: Redis, chosen: ChosenRun) -> str:
    run_state.write_state(redis, chosen.name, "paused")
    return f"run {chosen.name} is paused; batches in work are finished and stored"


def _resume(redis: Redis, chosen: ChosenRun) -> str:
    chosen.store.delete(closed_key(chosen.name))
    run_state.write_state(redis, chosen.name, "open")
    nodes = breaker.close_all(redis)
    return f"run {chosen.name} is open" + (f"; nodes that go on: {', '.join(nodes)}" if nodes else "")


def _cancel(redis: Redis, chosen: ChosenRun) -> str:
    run_state.write_state(redis, chosen.name, "cancelled")  # first, so that nobody adds behind us
    batches, samples = drop_queued(redis, chosen.name)
    return f"run {chosen.name} is cancelled: {batches} queued batches with {samples} samples were dropped"


def _close(redis: Redis, chosen: ChosenRun) -> str:
    counted = counters.read(redis, chosen.name)
    pending = counted.get("unique", 0) - counted.get("stored", 0) - counted.get("rejected", 0)
    if pending:
        raise UsageError(
            f"run {chosen.name} has {pending} samples that are neither stored nor rejected; wait, or "
            "`eaglefeed dead list` and `eaglefeed run-state cancel`"
        )
    record = {"run": chosen.name, "closed_at": time.time(), **counted}
    chosen.store.create(closed_key(chosen.name), json.dumps(record).encode())
    run_state.write_state(redis, chosen.name, "closed")
    return f"run {chosen.name} is closed: {counted.get('stored', 0)} samples stored"


def drop_queued(redis: Redis, run: str) -> tuple[int, int]:
    """Remove the run's waiting batches, each in one transaction with its samples; how many of both."""
    queue = queues.extract_queue(redis)
    batches = samples = 0
    for job_id in cast("list[bytes]", redis.lrange(queue.key, 0, -1)):
        try:
            job = QueuedJob.fetch(job_id.decode(), connection=redis, serializer=JSONSerializer)
        except NoSuchJobError:
            continue
        if letters.run_and_samples(job)[0] != run:
            continue
        sample_ids = letters.sample_ids(job)
        # Taken by a worker meanwhile: it is that worker's.
        if not redis.lrem(queue.key, 1, job_id.decode()):
            continue
        with redis.pipeline() as pipe:
            pipe.delete(job.key)
            forget_batch(pipe, run, job.id, sample_ids)
            pipe.execute()
        batches, samples = batches + 1, samples + len(sample_ids)
    return batches, samples


def _show(redis: Redis, chosen: ChosenRun, as_json: bool) -> None:
    counted = counters.read(redis, chosen.name)
    state = run_state.read_state(redis, chosen.name)
    if state == "open" and chosen.store.head(closed_key(chosen.name)):
        state = "closed"
    queue = queues.extract_queue(redis)
    facts = {
        "run": chosen.name,
        "state": state,
        "queued_batches": redis.llen(queue.key),
        **{name: counted.get(name, 0) for name in ("unique", "stored", "rejected", "dead")},
        "failing_nodes": sorted(breaker.open_nodes(redis)),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        print("\n".join(f"{name:<15} {value}" for name, value in facts.items()))
