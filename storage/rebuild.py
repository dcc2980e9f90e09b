"""Refill an emptied Redis from the store's manifests: known samples, stored batches and counters, each once."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from redis import Redis

from config import counters, names
from eaglefeed.manifest import Manifest
from eaglefeed.progress import Progress
from storage import ledger
from storage.jobs import amounts
from storage.run_choice import ChosenRun, add_run_arguments, chosen_run, required_redis

EXAMPLE = "example: eaglefeed rebuild --run config/smollm2.toml --redis redis://127.0.0.1:6379/0"
MANIFESTS_AT_ONCE = 200
STORE_MARK = b"store"

# KEYS: known set, batches hash, counted set, run hash.
# ARGV: batch id, mark, number of samples, sample ids..., then field, amount, ... of what the batch stored.
_LEARN = """
local new = 0
local last = 3 + tonumber(ARGV[3])
for i = 4, last do new = new + redis.call('SADD', KEYS[1], ARGV[i]) end
local batches = redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
if new > 0 then redis.call('HINCRBY', KEYS[4], 'unique', new) end
if batches > 0 then redis.call('HINCRBY', KEYS[4], 'batches', batches) end
if redis.call('SADD', KEYS[3], ARGV[1]) == 1 then
  for i = last + 1, #ARGV, 2 do redis.call('HINCRBY', KEYS[4], ARGV[i], ARGV[i + 1]) end
end
return new
"""


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


def learn(redis: Redis, run: str, manifests: list[Manifest]) -> int:
    """Make Redis know and count what these manifests hold, each once; the number of samples that were not known."""
    keys = [names.known_key(run), names.batches_key(run), names.counted_key(run), names.count_key(run)]
    pipeline: Any = redis.pipeline(transaction=False)
    for manifest in manifests:
        pipeline.eval(_LEARN, len(keys), *keys, *_arguments(manifest))
    return sum(pipeline.execute())


def _arguments(manifest: Manifest) -> Iterator[bytes | int | str]:
    ids = [sample.id for sample in manifest.samples] + [record.id for record in manifest.rejected]
    yield bytes.fromhex(manifest.batch_id)
    yield STORE_MARK
    yield len(ids)
    yield from map(bytes.fromhex, ids)
    for field, amount in amounts(manifest).items():
        if amount:
            yield field
            yield amount
