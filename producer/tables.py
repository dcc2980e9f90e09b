"""Rows of Parquet files, Arrow files, saved Hugging Face data sets and the hub, a record batch at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eaglefeed.errors import EnvironmentFault, UsageError
from producer.rows import Row

BATCH_ROWS = 256


def read_parquet(path: Path, name: str) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        yield from _rows(file.iter_batches(batch_size=BATCH_ROWS), name)


def read_arrow(path: Path, name: str) -> Iterator[Row]:
    """An Arrow file or stream, memory-mapped."""
    import pyarrow as arrow

    with arrow.memory_map(str(path)) as source:
        try:
            file = arrow.ipc.open_file(source)
            batches: Iterator[Any] = (file.get_batch(i) for i in range(file.num_record_batches))
        except arrow.ArrowInvalid:
            source.seek(0)
            batches = iter(arrow.ipc.open_stream(source))
        yield from _rows((piece for batch in batches for piece in _slices(batch)), name)


def saved_files(folder: Path) -> list[Path] | None:
    """The Arrow files of a ``save_to_disk`` folder in the data set's own order; None when it is no such folder."""
    splits = folder / "dataset_dict.json"
    if splits.exists():
        names = json.loads(splits.read_text("utf-8"))["splits"]
        return [file for split in names for file in saved_files(folder / split) or []]
    state = folder / "state.json"
    if not state.exists():
        return None
    return [folder / entry["filename"] for entry in json.loads(state.read_text("utf-8"))["_data_files"]]


def read_hub(address: str) -> Iterator[Row]:
    """``hf:NAME[:split]`` streamed through ``datasets``; raises EnvironmentFault when the hub does not give it."""
    name, _, split = address.removeprefix("hf:").partition(":")
    if not name:
        raise UsageError(f"{address!r}: write hf:NAME or hf:NAME:split")
    try:
        from datasets import load_dataset

        dataset = load_dataset(name, split=split or "train", streaming=True)
        for number, record in enumerate(dataset, 1):
            yield Row(address, number, dict(record))
    except ImportError as error:
        raise EnvironmentFault("hf: needs the package `datasets`: pip install datasets") from error
    except Exception as error:  # the hub's errors have no common root; the cause is kept
        raise EnvironmentFault(f"{address}: the hub did not give it: {error}") from error


def _rows(batches: Iterator[Any], name: str) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield Row(name, number, record)


def _slices(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
