"""Refill an emptied Redis from the store's manifests: known samples, stored batches and counters, each once."""

from __future__ import annotations

import argparse
import json
from itertools import islice

from redis import Redis

from config import counters, names
from eaglefeed.progress import Progress
from storage import ledger
from storage.accounts import learn
from storage.run_choice import ChosenRun, add_run_arguments, chosen_run, required_redis

EXAMPLE = "example: eaglefeed rebuild --run config/smollm2.toml --redis redis://127.0.0.1:6379/0"
MANIFESTS_AT_ONCE = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, with_redis=True)


def main(parsed: argparse.Namespace) -> int:
    run, redis = chosen_run(parsed), required_redis(parsed.redis)
    with Progress("rebuild", unit="manifests", quiet=parsed.quiet) as progress:
        num_manifests, num_new = rebuild(run, redis, progress)
    print(f"run {run.name}: {num_manifests:,} manifests read, {num_new:,} samples that this Redis did not know")
    found = counters.read(redis, run.name)
    waiting = found.get("unique", 0) - found.get("stored", 0) - found.get("rejected", 0)
    if waiting > 0:
        print(f"{waiting:,} enqueued samples are not stored yet")
    print("`eaglefeed produce` enqueues what neither the store nor this Redis has")
    return 0


def rebuild(run: ChosenRun, redis: Redis, progress: Progress) -> tuple[int, int]:
    """Learn every manifest; the numbers of manifests and of samples that were not known.

    Each manifest is learned in one atomic step and counted once, so a rebuild that was stopped, or that runs beside
    living workers, ends with the same numbers.
    """
    redis.set(names.run_key(run.name), json.dumps(run.settings.model_dump(mode="json")), nx=True)
    redis.sadd(names.RUNS_KEY, run.name)
    num_manifests = num_new = 0
    manifests = ledger.read_manifests(run.store, run.name)
    while group := list(islice(manifests, MANIFESTS_AT_ONCE)):
        num_new += learn(redis, run.name, group)
        num_manifests += len(group)
        progress.update(num_manifests, new_samples=f"{num_new:,}")
    return num_manifests, num_new
