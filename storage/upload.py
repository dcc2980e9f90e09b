"""A shard's way into the store: sent once, verified against the store's own checksum, never over another's."""

from __future__ import annotations

import logging
from pathlib import Path

from eaglefeed.checksum import path_checksum
from eaglefeed.errors import CorruptData, StoreUnavailable
from eaglefeed.manifest import norm_key
from eaglefeed.stores import Store
from storage.patience import patiently

log = logging.getLogger(__name__)


def upload_shard(store: Store, key: str, path: Path, checksum: str) -> bool:
    """Store the shard; False when another node's shard of this batch, with other bytes, is there already.

    Raises:
        CorruptData: the file itself is not what was written.
        StoreUnavailable: the worker is to stop.
    """
    return patiently(lambda: _upload_once(store, key, path, checksum), f"upload of {key}")


def upload_norm(store: Store, run: str, path: Path) -> None:
    """Store the final norm beside the run's shards, unless it is there or this node has none."""
    key = norm_key(run)
    if path.exists() and patiently(lambda: store.head(key), f"look for {key}") is None:
        data = path.read_bytes()
        patiently(lambda: store.create(key, data), f"upload of {key}")


def _upload_once(store: Store, key: str, path: Path, checksum: str) -> bool:
    try:
        store.put_file(key, path, checksum, create_only=True)
        return True
    except FileExistsError:
        return store.checksum(key) == checksum
    except CorruptData as error:
        found = path_checksum(path)
        if found != checksum:
            raise CorruptData(
                f"{path} reads back as {found}, and {checksum} was written: this disk is failing"
            ) from error
        raise StoreUnavailable(f"the shard was damaged on its way: {error}") from error
