"""Reading a run: from a directory and from SeaweedFS, in order and at random, against SpecForge's per-sample files."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.reader_data import RUN, copy_to, make_large_run, make_run, make_small_files, real_states
from bench.states import MODEL
from eaglefeed.batch_sampler import shuffled
from eaglefeed.dataset import Dataset
from eaglefeed.opening import open_run

EXAMPLE = "example: eaglefeed bench reader --json"
BATCH = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One way of reading all samples once. MB = 10^6 raw bytes (states as bfloat16), as they reach the caller."""

    reader: str
    place: str
    order: str
    cache: str
    workers: int
    samples_s: float
    mb_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=MODEL, metavar="DIR", help="SmolLM2 (default %(default)s)")
    parser.add_argument("--states-of", default="", metavar="RUN", help="take the states of this run instead")
    parser.add_argument("--samples", type=int, default=256, help="samples of 128 to 1,024 tokens (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="each row's best of so many, in turn with the others")
    parser.add_argument("--index-samples", type=int, default=100_000, help="samples for start-up (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="a disk to measure on; default a temporary folder")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(dir=parsed.folder, prefix="eaglefeed-bench-") as name:
        folder = Path(name)
        states = real_states(parsed.model, parsed.states_of, parsed.quiet)
        url = make_run(states, folder, parsed.samples, parsed.quiet)
        rows = measure_disk(url, folder, parsed.rounds) + measure_s3(url, folder, parsed.rounds)
        start = measure_start(folder, parsed.index_samples)
    result = {
        "rows": [asdict(row) for row in rows],
        "random_cold_over_specforge": {workers: _over_specforge(rows, workers) for workers in (1, 2)},
        **start,
    }
    print(json.dumps(result) if parsed.json else _table(rows, result))
    return 0


def measure_disk(url: str, folder: Path, rounds: int) -> list[Row]:
    """Both readers over the same states on the same disk, with and without the kernel's page cache."""
    run = open_run(url)
    files = [str(path) for path in sorted((folder / "specforge").rglob("*.ckpt"))]
    contenders: list[tuple[str, str, Any]] = [("eaglefeed", "disk", run), ("specforge", "disk", Files(files))]
    return list(_rows(contenders, run, rounds, folder, ("cold", "warm")))


def measure_s3(url: str, folder: Path, rounds: int) -> list[Row]:
    """The same run behind a real S3 server on this machine, and again behind the disk cache."""
    from tests.services import BUCKET, Seaweed

    server = Seaweed(folder / "seaweed")
    server.start()
    try:
        with _environment(server.environment):
            target = f"s3://{BUCKET}/bench"
            copy_to(url, target)
            run = open_run(target)
            cached = open_run(target, cache=folder / "cache")
            for start in range(0, len(cached), BATCH):
                cached.__getitems__(range(start, min(start + BATCH, len(cached))))
            contenders: list[tuple[str, str, Any]] = [("eaglefeed", "S3", run), ("eaglefeed", "S3, disk cache", cached)]
            return list(_rows(contenders, run, rounds, folder, ("warm",)))
    finally:
        server.stop()


def measure_start(folder: Path, num_samples: int) -> dict[str, float]:
    """Seconds until the number of samples and their lengths are known: ours by index, SpecForge's by listing files."""
    url = make_large_run(folder / "large", num_samples)
    ours = _seconds(lambda: len(open_run(url).lengths))
    files = make_small_files(folder / "small", num_samples)
    theirs = _seconds(lambda: len(list_ckpt(files)))
    return {"index_samples": num_samples, "start_seconds": ours, "specforge_listing_seconds": theirs}


class Files:
    """SpecForge's files as a map-style data set: one ``torch.load`` a sample, its tensors cloned as its loader does."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        import torch

        record = torch.load(self.paths[number], weights_only=False, mmap=True)
        return {name: tensor.clone() for name, tensor in record.items()}


def list_ckpt(folder: Path) -> list[str]:
    """Every feature file below, sorted: what SpecForge's reader does before the first sample."""
    found = [str(Path(root) / name) for root, _, names in os.walk(folder) for name in names if name.endswith(".ckpt")]
    return sorted(found)


def _rows(
    contenders: list[tuple[str, str, Any]], run: Dataset, rounds: int, folder: Path, caches: Sequence[str]
) -> Iterator[Row]:
    raw_bytes = int(run.lengths.sum()) * run.identity.bytes_per_token
    for cache in caches:
        for order in ("random", "sequential"):
            for workers in (1, 2):
                best: dict[tuple[str, str], float] = {}
                for round_number in range(rounds):
                    for name, place, data in contenders:
                        if cache == "cold":
                            _forget(folder)
                        seconds = _read_all(data, order, workers, round_number)
                        best[name, place] = min(best.get((name, place), seconds), seconds)
                for (name, place), seconds in best.items():
                    yield Row(name, place, order, cache, workers, len(run) / seconds, raw_bytes / seconds / 1e6)


def _read_all(data: Any, order: str, workers: int, seed: int) -> float:
    """Seconds for all samples, from when the workers run: two single samples each come first and are not counted."""
    from torch.utils.data import DataLoader

    numbers = list(range(len(data))) if order == "sequential" else shuffled(len(data), seed, 0).tolist()
    batches = [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]
    first = [[numbers[0]]] * (2 * workers)
    loader: Any = DataLoader(data, batch_sampler=first + batches, num_workers=workers, collate_fn=_reduced)
    given = iter(loader)
    next(given)
    started = time.perf_counter()
    if sum(given) + 1 != len(data) + len(first):
        raise RuntimeError("not every sample was read")
    return time.perf_counter() - started


def _reduced(samples: list[dict[str, Any]]) -> int:
    """The number of samples alone: what is measured is reading, not the passage between two processes."""
    return len(samples)


def _forget(folder: Path) -> None:
    """Let the kernel drop what it holds of the files below."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _over_specforge(rows: list[Row], workers: int) -> float:
    """Our MB/s over SpecForge's, random, from disk, with nothing in the page cache."""
    speeds = {
        row.reader: row.mb_s
        for row in rows
        if (row.place, row.cache, row.order, row.workers) == ("disk", "cold", "random", workers)
    }
    return speeds["eaglefeed"] / speeds["specforge"]


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _table(rows: list[Row], result: dict[str, Any]) -> str:
    lines = ["| reader | from | order | page cache | workers | samples/s | MB/s raw |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {row.reader} | {row.place} | {row.order} | {row.cache} | {row.workers} | {row.samples_s:,.0f} "
        f"| {row.mb_s:,.0f} |"
        for row in rows
    ]
    ratios = ", ".join(
        f"{ratio:.2f} times with {workers} worker{'s' * (workers > 1)}"
        for workers, ratio in result["random_cold_over_specforge"].items()
    )
    lines.append(
        f"\nrandom, cold, from disk, over SpecForge per raw byte: {ratios}; "
        f"start-up on {result['index_samples']:,} samples of run {RUN!r}: {result['start_seconds']:.2f} s "
        f"(listing as many files: {result['specforge_listing_seconds']:.2f} s)"
    )
    return "\n".join(lines)
