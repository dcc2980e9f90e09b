"""What a run has counted: in Redis, atomically, each outcome once.

Fields of the run's hash and of each minute's hash::

    unique batches             enqueued by the producer (one Redis transaction with the job)
    stored rejected            samples, when their manifest is in the store
    tokens raw_bytes stored_bytes    of stored samples
    retried dead               attempts that failed; samples given up
    rejected:<reason>          by reason
    dead:<reason>              samples of dead letters that wait for a decision, by kind of error; retry and drop take
                               them off again (also off ``dead``)
    length:<upper>             stored samples of at most so many tokens (powers of two), for the histogram
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from redis import Redis

from config import names

MINUTE_TTL_SECONDS = 7 * 24 * 3600

# KEYS: counted set, run hash, minute hash.  ARGV: 16-byte batch id, ttl, field, amount, field, amount, ...
_COUNT_ONCE = """
if redis.call('SADD', KEYS[1], ARGV[1]) == 0 then return 0 end
for i = 3, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('HINCRBY', KEYS[3], ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[3], ARGV[2])
return 1
"""


def count_once(redis: Redis, run: str, batch_id: str, amounts: Mapping[str, int]) -> bool:
    """Add a batch's outcome to the run and to this minute, unless it has been counted; whether it was."""
    minute = int(time.time() // 60)
    keys = [names.counted_key(run), names.count_key(run), names.minute_key(run, minute)]
    pairs: list[str | int] = [part for item in amounts.items() if item[1] for part in item]
    return bool(redis.eval(_COUNT_ONCE, len(keys), *keys, bytes.fromhex(batch_id), MINUTE_TTL_SECONDS, *pairs))


def count(pipeline: Redis, run: str, amounts: Mapping[str, int]) -> None:
    """Add to the run and to this minute, within the caller's transaction (or plainly, with a Redis)."""
    minute_key = names.minute_key(run, int(time.time() // 60))
    for field, amount in amounts.items():
        if amount:
            pipeline.hincrby(names.count_key(run), field, amount)
            pipeline.hincrby(minute_key, field, amount)
    pipeline.expire(minute_key, MINUTE_TTL_SECONDS)


def length_amounts(num_tokens: Iterable[int]) -> dict[str, int]:
    """How many samples fall under each power of two, as fields for ``count_once``."""
    return Counter(f"length:{1 << max(0, tokens - 1).bit_length()}" for tokens in num_tokens)


def read(redis: Redis, run: str) -> dict[str, int]:
    """The run's counters; absent ones are 0 for the reader."""
    fields = cast("dict[Any, Any]", redis.hgetall(names.count_key(run)))
    return {_text(name): int(value) for name, value in fields.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
