"""Fold a run's manifests into one index: a Parquet file for any tool, and the table that `eaglefeed.open` reads."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from eaglefeed.checksum import path_checksum
from eaglefeed.errors import CorruptData
from eaglefeed.folding import fold, merge
from eaglefeed.index import RunIndex, index_table_key
from eaglefeed.manifest import index_key
from eaglefeed.progress import Progress, byte_size
from eaglefeed.stores import Store
from storage import ledger
from storage.run_choice import add_run_arguments, chosen_run

EXAMPLE = "example: eaglefeed index --run config/smollm2.toml"
BLOCK_MANIFESTS = 4096
ROW_GROUP = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--anew", action="store_true", help="read all manifests, not only those since the last index")


def main(parsed: argparse.Namespace) -> int:
    run = chosen_run(parsed)
    with Progress("index", unit="manifests", quiet=parsed.quiet) as progress:
        index, num_read = build_index(run.store, run.name, progress, parsed.anew)
    num_bytes = write_index(run.store, index)
    print(
        f"run {run.name}: {len(index):,} samples of {index.num_manifests:,} manifests ({num_read:,} read now), "
        f"{byte_size(num_bytes)} at {run.store.url}/{index_key(run.name)}"
    )
    return 0


def build_index(store: Store, run: str, progress: Progress, anew: bool = False) -> tuple[RunIndex, int]:
    """The index of all manifests and how many were read for it: those that the stored index lacks.

    A sample that two batches hold is kept once, of the smaller batch id. An index that names a manifest which is gone
    is not built upon.
    """
    known = None if anew else _stored(store, run)
    stored_ids = list(ledger.batch_ids(store, run))
    folded = known.known_batch_ids() if known else set()
    if folded - set(stored_ids):
        known, folded = None, set()
    wanted = (batch_id for batch_id in stored_ids if batch_id not in folded)
    blocks = [known] if known else []
    num_read = 0
    manifests = ledger.read_manifests(store, run, wanted)
    while block := list(islice(manifests, BLOCK_MANIFESTS)):
        blocks.append(fold(run, block))
        num_read += len(block)
        progress.update(num_read)
        _merge_equals(blocks)
    while len(blocks) > 1:
        blocks.append(merge(blocks.pop(), blocks.pop()))
    return (blocks[0] if blocks else fold(run, ())), num_read


def write_index(store: Store, index: RunIndex) -> int:
    """Replace both index files, each at once; the Parquet file's size in bytes."""
    with tempfile.TemporaryDirectory(prefix="eaglefeed-index-") as folder:
        table = Path(folder) / "index.safetensors"
        table.write_bytes(index.to_bytes())
        _put(store, index_table_key(index.run), table)
        parquet = Path(folder) / "index.parquet"
        _write_parquet(index, parquet)
        _put(store, index_key(index.run), parquet)
        return parquet.stat().st_size


def _stored(store: Store, run: str) -> RunIndex | None:
    key = index_table_key(run)
    try:
        index = RunIndex.from_bytes(store.get(key), f"{store.url}/{key}")
    except (FileNotFoundError, CorruptData):
        return None  # it is written anew
    return index if index.run == run else None


def _merge_equals(blocks: list[RunIndex]) -> None:
    """Merge like a binary counter, so that each row is moved a logarithmic number of times."""
    while len(blocks) > 1 and len(blocks[-2]) <= 2 * len(blocks[-1]):
        blocks.append(merge(blocks.pop(), blocks.pop()))


def _put(store: Store, key: str, path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    store.put_file(key, path, path_checksum(path))


def _write_parquet(index: RunIndex, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("sample_id", pa.string()),
            ("num_tokens", pa.int32()),
            ("num_supervised_tokens", pa.int32()),
            ("shard", pa.dictionary(pa.int32(), pa.string())),
            ("start", pa.int64()),
            ("end", pa.int64()),
            ("raw_checksum", pa.string()),
            ("stored_checksum", pa.string()),
        ],
        metadata={"run": index.run, "eaglefeed_index_version": "1"},
    )
    shards = pa.array([index.shard_key(number) for number in range(len(index.shard_bytes))], pa.string())
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _row_groups(len(index)):
            columns = [
                pa.array([index.ids[row].tobytes().hex() for row in rows]),
                pa.array(index.num_tokens[rows], pa.int32()),
                pa.array(index.num_supervised_tokens[rows], pa.int32()),
                pa.DictionaryArray.from_arrays(pa.array(index.shards[rows], pa.int32()), shards),
                pa.array(index.starts[rows]),
                pa.array(index.ends[rows]),
                pa.array(_texts(index.raw_checksums[rows])),
                pa.array(_texts(index.stored_checksums[rows])),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _row_groups(num_rows: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    for start in range(0, num_rows, ROW_GROUP):
        yield np.arange(start, min(start + ROW_GROUP, num_rows), dtype=np.int64)


def _texts(values: Iterable[bytes]) -> list[str]:
    return [bytes(value).decode("ascii") for value in values]
