"""The circuit breaker: a node where everything fails stops, instead of turning a data set into dead letters.

Failures in a row are counted in Redis, over all of a node's workers of one queue. A success sets the count back; an
open breaker stays open, over restarts too, until a person has looked: ``eaglefeed run-state resume --run RUN.toml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from config import names
from eaglefeed.errors import RetryableError

MAX_REASON_CHARACTERS = 500


class NodePaused(RetryableError):
    """Too much failed in a row on this node; it waits for a person."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """``limit`` failures in a row open it."""

    redis: Redis
    node: str
    queue: str
    limit: int

    @property
    def key(self) -> str:
        return names.breaker_key(self.node, self.queue)

    def succeeded(self) -> None:
        self.redis.delete(self.key)

    def failed(self, reason: str) -> int:
        """Count one more; how many in a row it is."""
        with self.redis.pipeline() as pipe:
            pipe.hincrby(self.key, "failures", 1)
            pipe.hset(self.key, "reason", reason[:MAX_REASON_CHARACTERS])
            return int(pipe.execute()[0])

    def require_closed(self) -> None:
        """Raises NodePaused, with what failed last, while it is open."""
        failures, reason = cast("list[Any]", self.redis.hmget(self.key, ["failures", "reason"]))
        if failures is not None and int(failures) >= self.limit:
            raise NodePaused(
                f"node {self.node} is paused after {int(failures)} failures in a row on {self.queue!r}, the last: "
                f"{(reason or b'').decode('utf-8', 'replace')}. Mend it, then "
                "`eaglefeed run-state resume --run RUN.toml`"
            )


def close_all(redis: Redis) -> list[str]:
    """Close every open or counting breaker; their nodes."""
    keys = _keys(redis)
    if keys:
        redis.delete(*keys)
    return sorted(_nodes(keys))


def open_nodes(redis: Redis) -> set[str]:
    """The nodes whose breakers have counted a failure since the last success."""
    return _nodes(_keys(redis))


def _keys(redis: Redis) -> list[bytes]:
    return list(redis.scan_iter(names.breaker_key("*", "*"), count=1000))


def _nodes(keys: list[bytes]) -> set[str]:
    return {key.decode().removeprefix(names.BREAKER_PREFIX).partition("|")[0] for key in keys}
