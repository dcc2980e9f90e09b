"""What a dead process left in the spool: found when a storage worker starts, told apart by its header, cleared."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from config import queues
from eaglefeed.dump import SUFFIX, read_header
from eaglefeed.errors import CorruptData
from eaglefeed.manifest import manifest_key
from storage.node import StorageNode
from storage.spool import SHARD_SUFFIX, is_alive

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was done about the leftovers of a run's folder."""

    kept: int = 0
    removed: int = 0
    removed_bytes: int = 0


def clear_leftovers(node: StorageNode, min_age_seconds: float = 0.0) -> Cleared:
    """Remove what nobody will come back for; keep dumps whose batch still has a job.

    A dump whose batch is committed, or that no job names, is removed: its samples are stored, or will be extracted
    again. A dump that a store job names waits for it. One that an extract job is making now is its business.
    Files younger than ``min_age_seconds`` may be of a start-up proof and are left alone.
    """
    kept = removed = removed_bytes = 0
    for path in _files(node.folder):
        try:
            num_bytes = path.stat().st_size
            if time.time() - path.stat().st_mtime < min_age_seconds or _is_wanted(node, path):
                kept += 1
                continue
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # stored in the meantime
        removed, removed_bytes = removed + 1, removed_bytes + num_bytes
        log.info("%s was left by a dead process and is removed", path)
    return Cleared(kept, removed, removed_bytes)


def _files(folder: Path) -> Iterator[Path]:
    """Of the run's folder, and of those that its replicas have there."""
    for path in sorted([*folder.iterdir(), *folder.glob("r[0-9]*/*")]):
        if path.is_file() and (path.suffix in (SUFFIX, SHARD_SUFFIX) or path.name.endswith(f"{SUFFIX}.part")):
            yield path


def _is_wanted(node: StorageNode, path: Path) -> bool:
    if path.suffix == SHARD_SUFFIX:
        owner = path.name.split(".")[1]
        return owner.isdigit() and is_alive(int(owner))
    batch_id = _batch_of(path)
    # In this order: a batch that is handed on between the two questions is seen as one or the other.
    extract_status = queues.job_status(node.redis, batch_id)
    store_status = queues.job_status(node.redis, f"store-{batch_id}")
    if path.suffix != SUFFIX:  # being written, or cut off while it was
        return extract_status == "started"
    if node.store.head(manifest_key(node.identity.run, batch_id)) is not None:
        return store_status == "started"  # its job is about to delete it
    return store_status in (*queues.WAITING, "failed") or extract_status == "started"


def _batch_of(path: Path) -> str:
    """By the header; by the name where the header is damaged or not written yet."""
    try:
        return read_header(path).batch_id
    except CorruptData:
        return path.name.partition("-")[0]
