"""Writing a shard: dumps stream through the codec into one safetensors file, in bounded memory.

docs/format.md has every byte; ``eaglefeed.shard`` reads them. Legend: ``T`` tokens, ``S`` slots, ``H`` hidden width.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from eaglefeed import codec
from eaglefeed.checksum import checksum, combine, crc32_text
from eaglefeed.chunks import EncodedChunk, PlanePool, encode_chunk
from eaglefeed.dump import Dump, forget_pages
from eaglefeed.errors import CorruptData
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import StoredSample
from eaglefeed.records import Batch, Sample
from eaglefeed.shard_header import (
    ShardHeader,
    ShardSample,
    pack_header,
    reserved_bytes,
)
from eaglefeed.tensor_header import ChunkEntry, TensorPlan, header_size, packed_offsets
from eaglefeed.tensor_header import pack_header as pack_tensor_header
from eaglefeed.threads import in_order

_MAPPED_BYTES = 64 << 20
"""Rows of a dump that stay mapped behind the encoder, at most about this much: a batch may be larger than memory."""


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """What ``write_shard`` made: the manifest's entries and the file's own size and checksum."""

    samples: tuple[StoredSample, ...]
    shard_checksum: str
    shard_bytes: int
    raw_bytes: int


def write_shard(
    path: Path,
    identity: RunIdentity,
    batch: Batch,
    dumps: Mapping[str, Dump],
    encoding: str = "lossless",
    threads: int = 1,
) -> WrittenShard:
    """Write the batch's samples that have a dump, in the batch's order; the file is synced.

    The dumps are read once, a few chunks at a time; the shard is written in one pass, and only numbers that were not
    known before (sizes, checksums) are filled in behind it.

    Raises:
        CorruptData: a dump is not what its header says, or belongs to another sample or run; the file is removed.
        OSError: the disk is full or failing; the file is removed.
    """
    samples = [sample for sample in batch.samples if sample.id in dumps]
    if not samples:
        raise ValueError(f"batch {batch.id}: no dump to write a shard of")
    for sample in samples:
        _check_dump(sample, dumps[sample.id], identity)
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            return _write(file, identity, batch.id, samples, dumps, encoding, threads)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@dataclass(slots=True, eq=False)
class _States:
    """One sample's states on their way into the shard."""

    sample: Sample
    dump: Dump
    plan: TensorPlan
    offsets: bytes

    @property
    def head_bytes(self) -> int:
        return 5 * self.sample.num_tokens + header_size(self.plan, self.offsets)


def _write(
    file: BinaryIO,
    identity: RunIdentity,
    batch_id: str,
    samples: list[Sample],
    dumps: Mapping[str, Dump],
    encoding: str,
    threads: int,
) -> WrittenShard:
    blank = tuple(_described(sample, identity, encoding) for sample in samples)
    header = ShardHeader(identity, batch_id, encoding, blank)
    header_bytes = reserved_bytes(header)
    file.seek(header_bytes)
    written = list(_write_samples(file, samples, dumps, encoding, threads))
    header = replace(header, samples=tuple(written))
    head = pack_header(header, header_bytes)
    file.seek(0)
    file.write(head)
    file.flush()
    os.fsync(file.fileno())
    stored = tuple(sample.stored for sample in written)
    total = zlib.crc32(head)
    for sample in stored:
        total = combine(total, int(sample.stored_checksum[-8:], 16), sample.end - sample.start)
    raw_bytes = sum(dumps[sample.id].header.states_bytes for sample in samples)
    return WrittenShard(stored, crc32_text(total), stored[-1].end, raw_bytes)


def _write_samples(
    file: BinaryIO, samples: list[Sample], dumps: Mapping[str, Dump], encoding: str, threads: int
) -> Iterator[ShardSample]:
    """All chunks of all samples go through one set of threads, so that short samples keep them busy too."""
    begun: list[_States] = []

    def chunks() -> Iterator[tuple[npt.NDArray[Any], TensorPlan]]:
        for sample in samples:
            dump = dumps[sample.id]
            usable = codec.usable_encoding(dump.states, dump.header.dtype, encoding)
            plan = codec.plan_tensor(dump.states, dump.header.dtype, usable)
            begun.append(_States(sample, dump, plan, packed_offsets(plan)))
            for rows in codec.chunk_rows(dump.states, plan):
                yield rows, plan

    pool = PlanePool()
    encoded = in_order(lambda chunk: encode_chunk(*chunk, pool, with_raw_checksum=True), chunks(), threads)
    for number in range(len(samples)):
        first = next(encoded)
        yield _write_sample(file, begun[number], first, encoded, pool)


def _write_sample(
    file: BinaryIO,
    states: _States,
    chunk: EncodedChunk,
    rest: Iterator[EncodedChunk],
    pool: PlanePool,
) -> ShardSample:
    start = file.tell()
    file.seek(start + states.head_bytes)
    entries: list[ChunkEntry] = []
    raw_crc32 = data_crc32 = mapped_bytes = 0
    for number in range(states.plan.num_chunks):
        chunk = chunk if number == 0 else next(rest)
        file.writelines(chunk.parts)
        chunk.release(pool)
        entries.append(chunk.entry)
        mapped_bytes += chunk.raw_bytes
        if mapped_bytes >= _MAPPED_BYTES or number == states.plan.num_chunks - 1:
            forget_pages(states.dump)
            mapped_bytes = 0
        raw_crc32 = combine(raw_crc32, chunk.raw_crc32, chunk.raw_bytes)
        data_crc32 = combine(data_crc32, chunk.entry.crc32, chunk.entry.num_bytes)
    if raw_crc32 != states.dump.header.rows_crc32:
        raise CorruptData(f"sample {states.sample.id}: its dump's states are not the bytes that the engine wrote")
    end = file.tell()
    tokens, mask = states.sample.token_ids.astype("<u4").tobytes(), states.sample.loss_mask.tobytes()
    head = pack_tensor_header(states.plan, states.offsets, entries)
    file.seek(start)
    file.writelines((tokens, mask, head))
    file.seek(end)
    states_crc32 = combine(zlib.crc32(head), data_crc32, end - start - states.head_bytes)
    whole = combine(zlib.crc32(mask, zlib.crc32(tokens)), states_crc32, end - start - 5 * states.sample.num_tokens)
    stored = _entry(states.sample, start, end, crc32_text(raw_crc32), crc32_text(whole))
    shape, encoding = states.plan.shape, states.plan.encoding
    return ShardSample(stored, shape, encoding, checksum(tokens), checksum(mask), crc32_text(states_crc32))


def _described(sample: Sample, identity: RunIdentity, encoding: str) -> ShardSample:
    """A sample before its numbers are known; its text is as long as the final one's or longer."""
    none = crc32_text(0)
    shape = (sample.num_tokens, identity.num_slots, identity.hidden_size)
    longest = max(encoding, "lossless", key=len)
    return ShardSample(_entry(sample, 0, 0, none, none), shape, longest, none, none, none)


def _entry(sample: Sample, start: int, end: int, raw_checksum: str, stored_checksum: str) -> StoredSample:
    return StoredSample(
        sample.id,
        sample.num_tokens,
        sample.num_supervised_tokens,
        sample.num_tokens,
        start,
        end,
        raw_checksum,
        stored_checksum,
    )


def _check_dump(sample: Sample, dump: Dump, identity: RunIdentity) -> None:
    header = dump.header
    found = (header.num_tokens, header.num_slots, header.hidden_size, header.dtype, header.layer_ids)
    wanted = (sample.num_tokens, identity.num_slots, identity.hidden_size, identity.dtype, identity.layer_ids)
    if found != wanted:
        raise CorruptData(f"sample {sample.id}: a dump of {found}, and the run and the sample say {wanted}")
    if header.token_digest != sample.id or not np.array_equal(dump.token_ids, sample.token_ids):
        raise CorruptData(f"sample {sample.id}: a dump of other token ids ({header.token_digest})")
