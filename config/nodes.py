"""What a node says of itself in Redis, for the page: a hash that dies with the node."""

from __future__ import annotations

import time
from typing import Any, Literal

from redis import Redis

from config import names

TTL_SECONDS = 60
KEPT_SECONDS = 7 * 24 * 3600

EngineState = Literal["starting", "proving", "ready", "down", "paused"]


def publish(redis: Redis, node: str, fields: dict[str, str | int | float]) -> None:
    """Say how the node is now; ``fields`` are those of ``names.node_key``, the others keep their value."""
    mapping: dict[Any, Any] = {"updated_at": time.time(), **fields}
    with redis.pipeline() as pipe:
        pipe.zadd(names.NODES_KEY, {node: time.time()})
        pipe.zremrangebyscore(names.NODES_KEY, 0, time.time() - KEPT_SECONDS)
        pipe.hset(names.node_key(node), mapping=mapping)
        pipe.expire(names.node_key(node), TTL_SECONDS)
        pipe.execute()
