"""What a manifest means to Redis: what it adds to the counters, and the samples that are not to be enqueued again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from redis import Redis

from config import counters, names
from eaglefeed.manifest import Manifest

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


def amounts(manifest: Manifest) -> dict[str, int]:
    """What a manifest adds to its run's counters."""
    reasons = Counter(f"rejected:{record.reason}" for record in manifest.rejected)
    return {
        "stored": len(manifest.samples),
        "rejected": len(manifest.rejected),
        "tokens": manifest.num_tokens,
        "raw_bytes": manifest.raw_bytes,
        "stored_bytes": manifest.shard_bytes,
        **reasons,
        **counters.length_amounts(sample.num_tokens for sample in manifest.samples),
    }


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
