"""``eaglefeed.open``: from a store's address to a data set, or to what is wrong with the run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from eaglefeed import ledger
from eaglefeed.cache import DiskCache
from eaglefeed.dataset import Dataset, IntArray
from eaglefeed.errors import UsageError
from eaglefeed.fetch import RangeReader
from eaglefeed.form import form_for
from eaglefeed.index import RunIndex
from eaglefeed.norm import load_norm
from eaglefeed.stores import open_store

DEFAULT_CACHE_BYTES = 64 << 30


def open_run(
    url: str,
    run: str | None = None,
    *,
    aux: str = "flat",
    final: str | None = None,
    allow_incomplete: bool = False,
    cache: str | Path | None = None,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    threads: int | None = None,
    pin_memory: bool = False,
) -> Dataset:
    """Open a run in a directory or on S3; ``eaglefeed.open`` is this.

    Args:
        url: the store (``s3://bucket/prefix`` or a directory) with ``run``, or the run's own folder in it.
        run: needed only where the store holds several.
        aux: ``"flat"`` gives ``[T, K*H]``, ``"stacked"`` ``[T, K, H]``.
        final: ``"pre_norm"`` or ``"post_norm"`` (the engine's own where the run stores it, else computed with the
            run's own norm); default what is stored, and pre-norm of a run that stores both.
        allow_incomplete: take what is there of a run whose store lacks shards, instead of refusing it.
        cache, cache_bytes: a folder for what was fetched, and its limit; for S3.
        threads: requests and decodings at once in one process; default the cores, at most 8.
        pin_memory: give page-locked tensors, where torch has CUDA.

    Raises:
        UsageError: no such run; an option it cannot have (post-norm without a stored norm); or shards are missing,
            and which.
        CorruptData: run.json, the index or a manifest is damaged, or of another run: two runs are mixed.
        StoreUnavailable, EnvironmentFault: the store cannot be read.
    """
    url, run = ledger.locate(url, run)
    store = open_store(url)
    identity = ledger.read_identity(store, run)
    index, gaps = ledger.read_index(store, run)
    closed_with = ledger.samples_at_close(store, run)
    gaps = replace(gaps, lost_samples=max(0, (closed_with or 0) - len(index)))
    if gaps and not allow_incomplete:
        raise UsageError(
            f"run {run!r} at {url} is incomplete: {gaps.sentence()}. `eaglefeed audit` says more; "
            "allow_incomplete=True takes the samples that are there"
        )
    rows = _present_rows(index, gaps)
    norm = load_norm(store, run)
    threads = threads or min(8, os.cpu_count() or 1)
    reader = RangeReader(url, DiskCache(cache, cache_bytes) if cache else None, requests=threads)
    form = form_for(identity, aux, final or identity.final_states[0], norm, pin_memory)
    return Dataset(identity, index, rows, form, reader, norm, threads, gaps, closed_with is not None)


def _present_rows(index: RunIndex, gaps: ledger.Gaps) -> IntArray:
    absent = {*gaps.missing_shards, *gaps.wrong_sizes}
    lost = np.array([index.batch_id(shard) in absent for shard in range(len(index.batch_ids))], bool)
    return np.flatnonzero(~lost[index.shards]) if len(index) else np.zeros(0, np.int64)
