"""Manifests to an index: folded in any order, onto what was folded before, with each sample once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.errors import CorruptData
from eaglefeed.index import CHECKSUM, IntArray, RunIndex, as_keys
from eaglefeed.manifest import Manifest


def fold(run: str, manifests: Iterable[Manifest], known: RunIndex | None = None) -> RunIndex:
    """Fold manifests, onto ``known`` where given, into an index that does not depend on their order.

    A sample that two manifests hold (two nodes raced) is kept once, from the smaller batch id.

    Raises:
        CorruptData: a manifest belongs to another run, or its sample has not one row per token.
    """
    rows: list[tuple[Any, ...]] = []
    shard_bytes: dict[str, int] = {}
    empty: set[str] = set()
    num_rejected = num_manifests = 0
    for manifest in manifests:
        _require_whole(run, manifest)
        num_manifests += 1
        num_rejected += len(manifest.rejected)
        if not manifest.samples:
            empty.add(manifest.batch_id)
            continue
        shard_bytes[manifest.batch_id] = manifest.shard_bytes
        rows.extend(
            (
                bytes.fromhex(each.id),
                each.num_tokens,
                each.num_supervised_tokens,
                bytes.fromhex(manifest.batch_id),
                each.start,
                each.end,
                each.raw_checksum,
                each.stored_checksum,
            )
            for each in manifest.samples
        )
    index = _from_rows(run, rows, shard_bytes)
    index = replace(index, num_rejected=num_rejected, num_manifests=num_manifests, empty_batch_ids=tuple(sorted(empty)))
    return index if known is None else merge(known, index)


def merge(first: RunIndex, second: RunIndex) -> RunIndex:
    """The rows of both, ordered and each sample once, as if all manifests had been folded together."""
    batch_ids = np.concatenate([first.batch_ids, second.batch_ids])
    keys, numbers = np.unique(as_keys(batch_ids), return_inverse=True)
    shard_bytes = np.zeros(len(keys), np.int64)
    shard_bytes[numbers] = np.concatenate([first.shard_bytes, second.shard_bytes])
    columns = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in (
            "ids",
            "num_tokens",
            "num_supervised_tokens",
            "starts",
            "ends",
            "raw_checksums",
            "stored_checksums",
        )
    }
    shards = numbers[np.concatenate([first.shards, second.shards + len(first.batch_ids)])].astype(np.int64)
    keep = _kept(columns["ids"], shards, columns["starts"])
    return RunIndex(
        run=first.run,
        shards=shards[keep],
        batch_ids=keys.view(np.uint8).reshape(-1, 16),
        shard_bytes=shard_bytes,
        num_rejected=first.num_rejected + second.num_rejected,
        num_manifests=first.num_manifests + second.num_manifests,
        empty_batch_ids=tuple(sorted({*first.empty_batch_ids, *second.empty_batch_ids})),
        **{name: column[keep] for name, column in columns.items()},
    )


def _require_whole(run: str, manifest: Manifest) -> None:
    if manifest.run != run:
        raise CorruptData(f"manifest {manifest.batch_id} belongs to run {manifest.run!r}, not {run!r}")
    for sample in manifest.samples:
        if sample.num_rows != sample.num_tokens or sample.num_tokens <= 0 or not 0 <= sample.start < sample.end:
            raise CorruptData(
                f"manifest {manifest.batch_id}: sample {sample.id} has {sample.num_rows} rows for "
                f"{sample.num_tokens} tokens in bytes {sample.start} to {sample.end}"
            )


def _from_rows(run: str, rows: Sequence[tuple[Any, ...]], shard_bytes: dict[str, int]) -> RunIndex:
    batches = sorted(shard_bytes)
    numbers = {bytes.fromhex(batch): number for number, batch in enumerate(batches)}
    ids, tokens, supervised, batch, starts, ends, raw, stored = zip(*rows, strict=True) if rows else ((),) * 8
    id_bytes = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16)
    shards = np.array([numbers[each] for each in batch], np.int64)
    start_bytes = np.array(starts, np.int64)
    keep = _kept(id_bytes, shards, start_bytes)
    return RunIndex(
        run=run,
        ids=id_bytes[keep],
        num_tokens=np.array(tokens, np.int64)[keep],
        num_supervised_tokens=np.array(supervised, np.int64)[keep],
        shards=shards[keep],
        starts=start_bytes[keep],
        ends=np.array(ends, np.int64)[keep],
        raw_checksums=np.array(raw, CHECKSUM)[keep],
        stored_checksums=np.array(stored, CHECKSUM)[keep],
        batch_ids=np.frombuffer(bytes.fromhex("".join(batches)), np.uint8).reshape(-1, 16),
        shard_bytes=np.array([shard_bytes[each] for each in batches], np.int64),
    )


def _kept(ids: npt.NDArray[np.uint8], shards: IntArray, starts: IntArray) -> IntArray:
    """Rows in (shard, start) order, the first of each sample id."""
    order = np.lexsort((starts, shards))
    _, first = np.unique(as_keys(ids)[order], return_index=True)
    kept: IntArray = order[np.sort(first)]
    return kept
