"""The options that name a run on the command line, and what they open."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config import environment
from config.redis_faults import explained
from config.run import RunSettings, load_run
from eaglefeed.errors import EnvironmentFault
from eaglefeed.stores import Store
from storage.node import store_of


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run's settings and its store, opened."""

    settings: RunSettings
    store: Store

    @property
    def name(self) -> str:
        return self.settings.name


def add_run_arguments(parser: argparse.ArgumentParser, with_redis: bool = False) -> None:
    parser.add_argument("--run", required=True, metavar="RUN.toml", help="the run file")
    parser.add_argument("--store", metavar="URL|DIR", help="where its shards are, if not where the run file says")
    if with_redis:
        parser.add_argument("--redis", metavar="URL", help="default: REDIS_URL")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def chosen_run(parsed: argparse.Namespace) -> ChosenRun:
    """Raises UsageError as ``load_run`` does; the store is not asked anything yet."""
    overrides: dict[str, Any] = environment.setting_overrides()
    if parsed.store:
        overrides["store.url"] = parsed.store
    settings = load_run(parsed.run, overrides)
    return ChosenRun(settings, store_of(settings))


def reachable_redis(url: str | None) -> tuple[Redis | None, str]:
    """A Redis that answers now, else None and why, with the way out; nobody waits for one that is only asked along."""
    url = url or environment.redis_url()
    redis = Redis.from_url(url, socket_connect_timeout=2, socket_timeout=30)
    try:
        redis.ping()
        return redis, ""
    except (RedisError, OSError) as error:
        return None, explained(error, url)


def required_redis(url: str | None) -> Redis:
    """Raises EnvironmentFault when there is none."""
    redis, reason = reachable_redis(url)
    if redis is None:
        raise EnvironmentFault(f"Redis at {reason}")
    return redis
