"""What the reader's bench reads: a run of real states, SpecForge's files of it, and an index of many samples."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.states import smollm2_states
from eaglefeed.checksum import path_checksum
from eaglefeed.dump import Dump, DumpHeader
from eaglefeed.export.command import make_exporter
from eaglefeed.export.exporter import ExportOptions
from eaglefeed.export.job import export
from eaglefeed.folding import fold
from eaglefeed.identity import RunIdentity
from eaglefeed.index import index_table_key
from eaglefeed.manifest import Manifest, StoredSample, manifest_key, norm_key, run_key, shard_key
from eaglefeed.opening import open_run
from eaglefeed.records import Batch, Sample, batch_id
from eaglefeed.shard_writer import write_shard
from eaglefeed.stores import Store, open_store

RUN = "reader"
VOCABULARY = 49_152
SAMPLES_A_SHARD = 32


def real_states(model: Path, source: str, quiet: bool) -> np.ndarray:
    """16,384 rows of real states ``[T, K+1, H]``: of the run ``source``, else made on the spot."""
    if not source:
        return np.concatenate(smollm2_states(model, 16_384, quiet))
    run = open_run(source)
    count = int(np.searchsorted(np.cumsum(run.lengths), 16_384)) + 1
    return np.concatenate([each.states for each in run.states(range(min(count, len(run))))])


def make_run(states: np.ndarray, folder: Path, num_samples: int, quiet: bool) -> str:
    """A run in ``folder/store`` and SpecForge's files of it in ``folder/specforge``; the store's URL.

    The states are cut at random places into samples of 128 to 1,024 tokens; token ids are random.
    """
    url, rng = str(folder / "store"), np.random.default_rng(0)
    identity = make_identity(states.shape[2])
    store = open_store(url)
    store.create(run_key(RUN), identity.to_json())
    store.create(norm_key(RUN), _norm(states.shape[2]))
    lengths = rng.integers(128, 1025, num_samples)
    for start in range(0, num_samples, SAMPLES_A_SHARD):
        samples = [_sample(rng, int(length)) for length in lengths[start : start + SAMPLES_A_SHARD]]
        batch = Batch(RUN, tuple(samples))
        dumps = {each.id: _dump(identity, batch.id, each, states, rng) for each in samples}
        _store(store, identity, batch, dumps, folder)
    _write_index(store)
    run = open_run(url)
    export(make_exporter("specforge", run, ExportOptions(quiet=True)), folder / "specforge", quiet=quiet)
    return url


def make_identity(width: int) -> RunIdentity:
    none = "0" * 64
    return RunIdentity(
        RUN, "SmolLM2", none, none, none, 30, width, VOCABULARY, (1, 14, 26), "bfloat16", 1024, "", "bench", "1"
    )


def copy_to(source: str, target: str) -> None:
    """Every object of the run to another store."""
    have, want = open_store(source), open_store(target)
    for info in have.list(f"{RUN}/"):
        path = Path(source) / info.key
        want.put_file(info.key, path, path_checksum(path))


def make_large_run(folder: Path, num_samples: int) -> str:
    """A run of ``num_samples`` in ``folder``: true manifests and index, and shards that are holes of the right size."""
    url = str(folder)
    store = open_store(url)
    store.create(run_key(RUN), make_identity(576).to_json())
    manifests = list(_manifests(num_samples))
    for manifest in manifests:
        for key, size in ((manifest.shard, manifest.shard_bytes), (manifest_key(RUN, manifest.batch_id), 0)):
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(b"" if size else manifest.to_json())
                if size:
                    file.truncate(size)
    index = fold(RUN, manifests)
    store.create(index_table_key(RUN), index.to_bytes())
    return url


def make_small_files(folder: Path, num_samples: int) -> Path:
    """As many files as SpecForge would have, empty: what its reader lists before the first step."""
    for number in range(num_samples):
        group = number // 2000 * 2000
        path = folder / f"rows_{group}-{group + 2000}" / f"data_{number}.ckpt"
        if number % 2000 == 0:
            path.parent.mkdir(parents=True)
        path.touch()
    return folder


def _manifests(num_samples: int) -> Iterator[Manifest]:
    rng = np.random.default_rng(1)
    for start in range(0, num_samples, SAMPLES_A_SHARD):
        count = min(SAMPLES_A_SHARD, num_samples - start)
        ids = [rng.bytes(16).hex() for _ in range(count)]
        samples, end = [], 4096
        for each in ids:
            tokens = int(rng.integers(128, 1025))
            begin, end = end, end + tokens * 3000
            samples.append(
                StoredSample(each, tokens, tokens // 2, tokens, begin, end, "crc32:00000000", "crc32:00000000")
            )
        name = batch_id(ids)
        yield Manifest(RUN, name, shard_key(RUN, name), end, "crc32:00000000", end, tuple(samples))


def _sample(rng: np.random.Generator, length: int) -> Sample:
    token_ids = rng.integers(0, VOCABULARY, length).astype(np.uint32)
    return Sample(token_ids, (np.arange(length) >= length // 2).astype(np.uint8))


def _dump(identity: RunIdentity, batch: str, sample: Sample, states: np.ndarray, rng: np.random.Generator) -> Dump:
    start = int(rng.integers(0, len(states) - sample.num_tokens))
    rows = np.ascontiguousarray(states[start : start + sample.num_tokens])
    header = DumpHeader(
        RUN,
        batch,
        sample.id,
        sample.id,
        sample.num_tokens,
        rows.shape[1],
        rows.shape[2],
        identity.dtype,
        identity.layer_ids,
        zlib.crc32(rows.data),
    )
    return Dump(header, sample.token_ids, np.arange(sample.num_tokens, dtype=np.uint32), rows)


def _store(store: Store, identity: RunIdentity, batch: Batch, dumps: dict[str, Dump], folder: Path) -> None:
    path = folder / "shard"
    written = write_shard(path, identity, batch, dumps, threads=2)
    key = shard_key(RUN, batch.id)
    store.put_file(key, path, written.shard_checksum)
    path.unlink()
    manifest = Manifest(
        RUN, batch.id, key, written.shard_bytes, written.shard_checksum, written.raw_bytes, written.samples
    )
    store.create(manifest_key(RUN, batch.id), manifest.to_json())


def _write_index(store: Store) -> None:
    index = open_run(store.url).index
    store.create(index_table_key(RUN), index.to_bytes())


def _norm(width: int) -> bytes:
    import safetensors.numpy

    data: bytes = safetensors.numpy.save({"weight": np.ones(width, np.float32)}, {"eps": "1e-5", "kind": "rms"})
    return data
