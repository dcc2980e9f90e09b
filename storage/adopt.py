"""A shard that another node has left at this batch's key: proved from its own bytes, so that it can be committed."""

from __future__ import annotations

from eaglefeed.errors import CorruptData
from eaglefeed.identity import RunIdentity
from eaglefeed.records import Batch
from eaglefeed.shard import ShardReader
from eaglefeed.shard_writer import WrittenShard
from eaglefeed.stores import Store


def adopt_shard(store: Store, key: str, batch: Batch, identity: RunIdentity) -> WrittenShard:
    """Read every sample of the shard back and describe it as ``write_shard`` would have.

    Two nodes that raced on one batch made equally complete states; overwriting the first shard could tear it from
    under its manifest, so the later node takes over what is there.

    Raises:
        CorruptData: the shard is damaged or belongs to another batch or run.
    """
    reader = ShardReader.from_store(store, key)
    identity.require_same(reader.identity, reader.where)
    expected = {sample.id: sample for sample in batch.samples}
    raw_bytes = 0
    for entry in reader.samples:
        sample = expected.get(entry.id)
        if reader.header.batch_id != batch.id or sample is None:
            raise CorruptData(f"{reader.where}: sample {entry.id} is not of batch {batch.id}")
        states = reader.read(entry, check_raw=True)
        if (states.loss_mask != sample.loss_mask).any():
            raise CorruptData(f"{reader.where}: sample {entry.id} has another loss mask than batch {batch.id}")
        raw_bytes += states.states.nbytes
    return WrittenShard(reader.samples, store.checksum(key), reader.num_bytes, raw_bytes)
