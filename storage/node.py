"""What the storage jobs of one process share: settings, identity, store, spool and Redis, opened once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from redis import Redis

from config import environment, queues
from config.model_identity import run_identity
from config.run import RunSettings, load_node_run
from eaglefeed.identity import RunIdentity
from eaglefeed.stores import Store, StoreOptions, open_store
from storage.ledger import ensure_run
from storage.spool import Spool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StorageNode:
    """A storage process's own things."""

    name: str
    settings: RunSettings
    identity: RunIdentity
    store: Store
    spool: Spool
    redis: Redis
    create_is: str = ""

    @property
    def folder(self) -> Path:
        """Where this run's dumps wait."""
        return self.spool.folder(self.identity.run)


def store_of(settings: RunSettings) -> Store:
    """The run's store, with the run file's part size, concurrency and attempts."""
    options = StoreOptions(settings.store.part_bytes, settings.store.upload_concurrency, settings.store.max_attempts)
    return open_store(settings.store.url, options)


@cache
def this_node() -> StorageNode:
    """Open everything and prove that it can be used.

    Raises:
        EnvironmentFault, StoreUnavailable: store or spool cannot be used; the message says why.
        IdentityMismatch: the run in the store was made with other settings.
    """
    settings = load_node_run()
    spool = Spool(settings.spool)
    spool.open()
    identity, store = run_identity(settings), store_of(settings)
    create_is = store.check()
    log.info("store %s: %s", store.url, create_is)
    ensure_run(store, identity)
    return StorageNode(environment.node_name(), settings, identity, store, spool, queues.connect(), create_is)
