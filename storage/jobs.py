"""The job of a node's storage: a batch's proved dumps become one verified shard and one manifest."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from config import counters, ending, names
from config.queues import store_queue
from eaglefeed.dump import Dump, read_dump
from eaglefeed.errors import CorruptData, DumpsSpoilt, SpoolFull
from eaglefeed.manifest import Manifest, RejectedSampleRecord, shard_key
from eaglefeed.records import Batch
from eaglefeed.shard_writer import WrittenShard, write_shard
from storage import accounts, ledger
from storage.adopt import adopt_shard
from storage.lookahead import Lookahead
from storage.node import StorageNode, this_node
from storage.patience import patiently
from storage.spool import NORM_NAME, SHARD_SUFFIX
from storage.upload import upload_norm, upload_shard

log = logging.getLogger(__name__)


def store_batch(
    payload: dict[str, Any],
    dumps: dict[str, str],
    rejected: Sequence[dict[str, Any]] = (),
    engine: dict[str, Any] | None = None,
) -> None:
    """Steps 9 to 11 of a sample's life (docs/structure.md): encode, upload, verify, commit, count, forget.

    It may run any number of times; nothing is deleted from the spool before the manifest exists.

    Raises:
        DumpsSpoilt: dumps are gone or damaged; the batch has to be extracted again.
        StoreUnavailable: the worker is to stop; the job may run again.
        CorruptData: the payload is not what the producer enqueued.
    """
    node, batch = this_node(), Batch.from_payload(payload)
    require_whole(node, batch, dumps, rejected)
    manifest = find_manifest(node, batch)
    if manifest is None:
        try:
            manifest = commit(node, batch, dumps, rejected, engine or {})
        except DumpsSpoilt:
            manifest = find_manifest(node, batch)
            if manifest is None:
                raise  # else another worker stored the batch and forgot its dumps while this one began
        except ending.JobForgotten:
            forget(node, dumps)  # its samples are extracted again, into dumps of other names
            raise
    count(node, manifest)
    forget(node, dumps)


def find_manifest(node: StorageNode, batch: Batch) -> Manifest | None:
    """The batch's manifest, when it is stored already."""
    return patiently(lambda: ledger.find_manifest(node.store, batch.run, batch.id), f"look for batch {batch.id}")


def commit(
    node: StorageNode,
    batch: Batch,
    dumps: Mapping[str, str],
    rejected: Sequence[Mapping[str, Any]],
    engine: dict[str, Any],
) -> Manifest:
    """Store the shard, verified, then create the manifest; the manifest that counts, ours or another node's."""
    written = store_shard(node, batch, dumps) if dumps else None
    upload_norm(node.store, batch.run, node.folder / NORM_NAME)
    manifest = describe(node, batch, written, rejected, engine)

    def publish() -> Manifest:
        ending.require_remembered()  # at each attempt: a store may be away for longer than it takes to empty Redis
        return ledger.publish(node.store, manifest)

    return patiently(publish, f"commit of batch {batch.id}")


def require_whole(
    node: StorageNode, batch: Batch, dumps: Mapping[str, str], rejected: Sequence[Mapping[str, Any]]
) -> None:
    """Raises CorruptData unless every sample of the batch is a dump or a reject, and the run is this node's."""
    if batch.run != node.identity.run:
        raise CorruptData(f"a batch of run {batch.run!r} on a node that serves {node.identity.run!r}")
    outcome = Counter([*dumps, *(str(record.get("id")) for record in rejected)])
    if outcome != Counter(sample.id for sample in batch.samples):
        raise CorruptData(
            f"batch {batch.id}: {len(dumps)} dumps and {len(rejected)} rejects are not its {len(batch.samples)} samples"
        )
    for name in dumps.values():
        dump_path(node, batch, name)


def store_shard(node: StorageNode, batch: Batch, dumps: Mapping[str, str]) -> WrittenShard:
    """Encode the dumps into one file and store it; where another node's shard has been first, take that over."""
    key, path = shard_key(batch.run, batch.id), shard_path(node, batch.id)
    look = lookahead()
    try:
        written = look.take(batch.id) or patiently(
            lambda: encode_shard(node, batch, dumps, path), f"shard of batch {batch.id}"
        )
        look.begin(batch.id)
        if upload_shard(node.store, key, path, written.shard_checksum):
            return written
    finally:
        path.unlink(missing_ok=True)
    log.warning("another node's shard of batch %s is in the store; it is taken over", batch.id)
    return patiently(lambda: adopt_shard(node.store, key, batch, node.identity), f"read back of {key}")


def dump_path(node: StorageNode, batch: Batch, name: str) -> Path:
    """A dump that a job names; raises CorruptData for a name that leads out of the run's folder."""
    try:
        return node.folder / names.checked_dump(name)
    except CorruptData as error:
        raise CorruptData(f"batch {batch.id}: {error}") from error


def shard_path(node: StorageNode, batch_id: str) -> Path:
    """This process's own file for a batch's shard; its name says which process may still want it."""
    return node.folder / f"{batch_id}.{os.getpid()}{SHARD_SUFFIX}"


@cache
def lookahead() -> Lookahead:
    """This process's look ahead at its queue: the next shard is encoded while this one is uploaded."""
    node = this_node()
    return Lookahead(
        node.redis,
        store_queue(node.redis, node.name),
        lambda batch, dumps, path: encode_shard(node, batch, dumps, path),
        lambda batch_id: shard_path(node, batch_id),
    )


def encode_shard(node: StorageNode, batch: Batch, dumps: Mapping[str, str], path: Path) -> WrittenShard:
    """Read the dumps, checking every byte on the way, and write the shard file.

    Raises:
        DumpsSpoilt: a dump is gone or damaged.
        SpoolFull: the disk has no room for the shard now.
    """
    settings = node.settings.store
    try:
        opened = {sample_id: open_dump(dump_path(node, batch, name)) for sample_id, name in dumps.items()}
        return write_shard(path, node.identity, batch, opened, settings.encoding, settings.encode_threads)
    except CorruptData as error:
        raise DumpsSpoilt(f"batch {batch.id}: {error}") from error
    except OSError as error:
        node.spool.require_writable()  # a better sentence, where that is why
        raise SpoolFull(f"{path}: {error.strerror or error}") from error


def open_dump(path: Path) -> Dump:
    """Raises DumpsSpoilt when there is no such dump, CorruptData when it is damaged."""
    try:
        return read_dump(path)
    except FileNotFoundError as error:
        raise DumpsSpoilt(f"{path} is gone") from error


def describe(
    node: StorageNode,
    batch: Batch,
    written: WrittenShard | None,
    rejected: Sequence[Mapping[str, Any]],
    engine: dict[str, Any],
) -> Manifest:
    """The manifest of a batch; its shard is empty when every sample was rejected."""
    records = [RejectedSampleRecord(**record) for record in rejected]
    if written is None:
        return Manifest(batch.run, batch.id, "", 0, "", 0, (), tuple(records), node.name, engine, time.time())
    held = {sample.id for sample in written.samples}
    known = held | {record.id for record in records}
    records = [record for record in records if record.id not in held]
    records += [_left_out(sample.id, sample.num_tokens) for sample in batch.samples if sample.id not in known]
    return Manifest(
        run=batch.run,
        batch_id=batch.id,
        shard=shard_key(batch.run, batch.id),
        shard_bytes=written.shard_bytes,
        shard_checksum=written.shard_checksum,
        raw_bytes=written.raw_bytes,
        samples=written.samples,
        rejected=tuple(records),
        node=node.name,
        engine=engine,
        created_at=time.time(),
    )


def count(node: StorageNode, manifest: Manifest) -> None:
    """Add the batch's outcome to the counters, once however often this runs.

    Where Redis was emptied while the manifest was on its way, it learns the batch here, as a rebuild would teach it:
    who produces after that does not enqueue its samples again.
    """
    counters.count_once(node.redis, manifest.run, manifest.batch_id, accounts.amounts(manifest))
    if ending.is_remembered() or node.redis.hexists(names.batches_key(manifest.run), bytes.fromhex(manifest.batch_id)):
        return  # else it was not another worker's end of this job that removed its record
    num_ids = len(manifest.samples) + len(manifest.rejected)
    num_known = num_ids - accounts.learn(node.redis, manifest.run, [manifest])
    if num_known:
        log.warning(
            "Redis was emptied while batch %s was committed, and %d of its samples were enqueued again: they may be "
            "stored twice; the audit counts them, and readers take one copy of each",
            manifest.batch_id,
            num_known,
        )


def forget(node: StorageNode, dumps: Mapping[str, str]) -> None:
    """Delete the dumps of a batch whose manifest exists."""
    for name in dumps.values():
        (node.folder / names.checked_dump(name)).unlink(missing_ok=True)


def _left_out(sample_id: str, num_tokens: int) -> RejectedSampleRecord:
    return RejectedSampleRecord(
        sample_id, num_tokens, -1, "left-out", "another node's shard of this batch was first, and is without it"
    )
