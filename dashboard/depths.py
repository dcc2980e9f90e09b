"""How deep queues and spools were, once a minute, in Redis: the one thing that the dashboard writes unasked."""

from __future__ import annotations

import json

from redis import Redis

from config import names
from config.counters import MINUTE_TTL_SECONDS
from dashboard.figures import Numbers
from dashboard.pipeline import spool_bytes


def record_depths(redis: Redis, numbers: Numbers) -> None:
    """Write this minute's depths unless another dashboard has; they are kept as long as the minutes' counters."""
    spool, limit = spool_bytes(numbers.nodes)
    extract = [queue for queue in numbers.queues if queue.name == names.EXTRACT_QUEUE]
    store = [queue for queue in numbers.queues if queue.name != names.EXTRACT_QUEUE]
    depths = {
        "extract": sum(queue.waiting for queue in extract),
        "store": sum(queue.waiting for queue in store),
        "spool_bytes": spool,
        "spool_max_bytes": limit,
        "dead": numbers.dead,
    }
    redis.set(names.depth_key(int(numbers.taken_at // 60)), json.dumps(depths), nx=True, ex=MINUTE_TTL_SECONDS)
