"""What a Redis must promise before work is entrusted to it, and a warning where it may forget."""

from __future__ import annotations

import logging
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from eaglefeed.errors import EnvironmentFault

log = logging.getLogger(__name__)

OLDEST_VERSION = (6, 2)


def check_redis(redis: Redis, where: str = "Redis") -> list[str]:
    """Warnings, each with what could be lost; they are logged as well.

    Raises EnvironmentFault when the server is too old or evicts keys: jobs would vanish without a word.
    """
    version = str(_info(redis, "server").get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VERSION:
        raise EnvironmentFault(f"{where} is version {version}; 6.2 or newer is needed (LMOVE, SMISMEMBER)")
    policy = _info(redis, "memory").get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise EnvironmentFault(
            f"{where} has maxmemory-policy {policy}: when it is full it forgets jobs. "
            "Set `maxmemory-policy noeviction`; the producer then waits instead"
        )
    warnings = list(_losses(redis, where))
    for warning in warnings:
        log.warning("%s", warning)
    return warnings


def _losses(redis: Redis, where: str) -> list[str]:
    persistence = _info(redis, "persistence")
    if persistence and not int(persistence.get("aof_enabled", 0)):
        return [
            f"{where} keeps no append-only file: a restart loses queued batches, counters and dead letters back to its "
            "last snapshot. Stored shards are safe; `eaglefeed rebuild` and a second `eaglefeed produce` bring the "
            "rest back. Set `appendonly yes`"
        ]
    if str(_config(redis, "appendfsync")) == "no":
        return [
            f"{where} has appendfsync no: a crash of its machine loses what the kernel had not written, often half a "
            "minute. Set `appendfsync everysec`"
        ]
    return []


def _info(redis: Redis, section: str) -> dict[str, Any]:
    try:
        return dict(redis.info(section))
    except ResponseError:  # a service that hides INFO
        return {}


def _config(redis: Redis, name: str) -> Any:
    try:
        return dict(redis.config_get(name)).get(name)
    except ResponseError:  # managed services hide CONFIG
        return None
