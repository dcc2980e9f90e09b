"""A run becomes known: its identity in the store, once, and its settings in Redis for whoever watches."""

from __future__ import annotations

from redis import Redis

from config import names, run_state
from config.model_identity import run_identity
from config.run import RunSettings
from eaglefeed.errors import UsageError
from eaglefeed.identity import RunIdentity
from eaglefeed.stores import Store
from storage.ledger import ensure_run
from storage.run_state import closed_key


def register(settings: RunSettings, store: Store, redis: Redis) -> RunIdentity:
    """Write ``run.json`` if there is none, else require that it is the same run.

    Raises:
        IdentityMismatch: the run was begun with another model, layers, template or preparation; each field is named.
        UsageError: the run is cancelled or closed.
    """
    run_state.require_producing(redis, settings.name)
    if store.head(closed_key(settings.name)):
        raise UsageError(f"run {settings.name!r} is closed; `eaglefeed run-state resume --run RUN.toml` opens it again")
    identity = run_identity(settings)
    ensure_run(store, identity)
    redis.set(names.run_key(settings.name), settings.model_dump_json())
    redis.sadd(names.RUNS_KEY, settings.name)
    return identity
