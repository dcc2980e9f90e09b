"""Checks of what the machine talks to: Redis, its clock against ours, and the object store."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError

from config.environment import without_password
from config.redis_faults import refused
from eaglefeed.errors import EaglefeedError
from eaglefeed.progress import byte_size
from eaglefeed.stores import open_store
from local.findings import Finding

MIN_REDIS = (6, 2)
MAX_CLOCK_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
PROBE_BYTES = b"eaglefeed doctor"


def check_redis(url: str) -> Iterator[Finding]:
    """Redis answers, is new enough, and forgets nothing."""
    redis = Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS)
    shown = without_password(url)
    try:
        info = redis.info()
        settings = _settings(redis)
    except RedisError as error:
        wrong, _, advice = refused(error, shown).partition(". ")
        yield Finding(
            "redis", "wrong", wrong or f"{shown} does not answer: {error}", advice or "start it, or set REDIS_URL"
        )
        return
    yield _version(str(info["redis_version"]), shown)
    yield _policy(str(info.get("maxmemory_policy") or settings.get("maxmemory-policy", "noeviction")))
    yield _durability(bool(info.get("aof_enabled")))
    yield from _limits(info, settings)
    yield _protection(url, settings)


def check_clock(url: str) -> Iterator[Finding]:
    """This machine's clock against Redis': ages, rates and heartbeats are differences between machines."""
    redis = Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS)
    try:
        before = time.time()
        seconds, micros = redis.time()
        offset = (before + time.time()) / 2 - (seconds + micros / 1e6)
    except RedisError:
        return  # the Redis check says so already
    if abs(offset) > MAX_CLOCK_SECONDS:
        side = "ahead of" if offset > 0 else "behind"
        fact = f"this clock is {abs(offset):.0f} s {side} Redis'"
        yield Finding("clock", "wrong", fact, "start chrony or systemd-timesyncd on both machines")
    else:
        yield Finding("clock", "ok", f"within {abs(offset) * 1000:.0f} ms of Redis'")


def check_store(url: str) -> Iterator[Finding]:
    """The store takes, gives back and deletes an object, and creates a key once only."""
    key = f".eaglefeed-doctor/{secrets.token_hex(8)}"
    try:
        store = open_store(url)
        words = store.check()
        store.create(key, PROBE_BYTES)
        try:
            found = store.get(key)
        finally:
            store.delete(key)
    except EaglefeedError as error:
        advice = "check S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's rights"
        yield Finding("store", "wrong", str(error), advice if url.startswith("s3://") else "choose another folder")
        return
    if found != PROBE_BYTES:
        yield Finding("store", "wrong", f"{url} gave back other bytes than were written", "do not use this store")
    elif "does not honour" in words:
        advice = "use a store that honours If-None-Match (AWS, SeaweedFS, MinIO, Ceph), or one storage node only"
        yield Finding("store", "wrong", f"{url}: {words}", advice)
    else:
        yield Finding("store", "ok", f"{url}: written, read and deleted; {words}")


def _settings(redis: Redis) -> dict[str, str]:
    """``CONFIG GET``, which managed servers forbid."""
    try:
        found = cast("dict[Any, Any]", redis.config_get("*"))
    except RedisError:
        return {}
    return {_text(name): _text(value) for name, value in found.items()}


def _version(version: str, shown: str) -> Finding:
    if tuple(map(int, version.split(".")[:2])) < MIN_REDIS:
        return Finding("redis", "wrong", f"{shown} is version {version}", "6.2 or newer is needed")
    return Finding("redis", "ok", f"{shown} is version {version}")


def _policy(policy: str) -> Finding:
    if policy != "noeviction":
        fact = f"maxmemory-policy is {policy}: jobs and known samples would vanish when memory is short"
        return Finding("redis", "wrong", fact, "CONFIG SET maxmemory-policy noeviction, and in its file")
    return Finding("redis", "ok", "maxmemory-policy is noeviction")


def _durability(aof: bool) -> Finding:
    if not aof:
        advice = "set `appendonly yes`; after a loss, `eaglefeed rebuild` and produce again restore the state"
        return Finding("redis", "warning", "no append-only file: a crash loses what is queued", advice)
    return Finding("redis", "ok", "append-only file is on")


def _limits(info: dict[str, Any], settings: dict[str, str]) -> Iterator[Finding]:
    limit, used = int(info.get("maxmemory") or 0), int(info["used_memory"])
    if limit and used > 0.8 * limit:
        fact = f"{byte_size(used)} of {byte_size(limit)} are used"
        yield Finding("redis", "warning", fact, "raise maxmemory, or lower data.max_queued_batches")
    if int(settings.get("hash-max-listpack-value") or 1024) < 1024:
        advice = "CONFIG SET hash-max-listpack-value 1024"
        yield Finding(
            "redis", "warning", "hash-max-listpack-value is small: a queued job takes three times the memory", advice
        )


def _protection(url: str, settings: dict[str, str]) -> Finding:
    open_to_all = settings.get("bind", "127.0.0.1").strip() not in ("127.0.0.1", "127.0.0.1 -::1", "127.0.0.1 ::1")
    if settings and open_to_all and not settings.get("requirepass"):
        advice = "whoever reaches Redis can enqueue jobs: set a password, and keep it on a private network"
        return Finding("redis", "warning", f"bound to {settings['bind'] or 'all addresses'} without a password", advice)
    return Finding("redis", "ok", "not open to others" if settings else "its settings may not be read (managed server)")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
