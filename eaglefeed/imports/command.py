"""Make a run of a trainer's dumps: every file is proved as `eaglefeed check` does, and faulty ones stay out."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eaglefeed import ledger
from eaglefeed.errors import EnvironmentFault, UsageError
from eaglefeed.form import has_torch
from eaglefeed.identity import RunIdentity
from eaglefeed.imports.check import Look, Report, judge, looks_of
from eaglefeed.imports.convert import as_dump, as_sample, kind_of
from eaglefeed.imports.foreign import Reader
from eaglefeed.imports.origin import make_identity, read_final_norm
from eaglefeed.imports.readers import READERS, reader_for
from eaglefeed.manifest import Manifest, manifest_key, norm_key, run_key, shard_key
from eaglefeed.progress import Progress
from eaglefeed.records import Batch, Sample
from eaglefeed.shard_writer import write_shard
from eaglefeed.stores import Store, open_store

EXAMPLE = """example:
  eaglefeed import --format specforge /data/features --model ./Llama-3.1-8B-Instruct --name llama --store ./store"""

BATCH_TOKENS = 32_768


@dataclass(frozen=True, slots=True)
class ImportCount:
    """What an import ended with."""

    imported: int
    present: int
    """Samples that the run held already."""

    faulty: int
    shards: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the trainer's folder")
    parser.add_argument("--format", required=True, choices=READERS, help="whose format")
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="the target's checkpoint")
    parser.add_argument("--name", required=True, help="the new run's name")
    parser.add_argument("--store", required=True, metavar="URL|DIR", help="where the run goes")
    parser.add_argument("--layers", metavar="K,K,K", help="captured layers, as outputs of decoder layers from 0")
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS, help="tokens of a shard")
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1), help="files read at once")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    if not has_torch():
        raise EnvironmentFault("trainers' dumps are read with torch: pip install torch")
    reader = reader_for(parsed.format)
    looks = list(looks_of(reader, parsed.folder, parsed.threads, parsed.quiet))
    report = judge(looks, reader.name, parsed.folder)
    faulty = {fault.path for fault in report.faults}
    whole = [look for look in looks if look.path not in faulty]
    store = open_store(parsed.store)
    identity = _start_run(store, parsed, reader, whole)
    count = import_whole(store, identity, reader, parsed.folder, whole, len(faulty), parsed)
    _tell(count, report, identity, parsed)
    return 1 if report.faults else 0


def import_whole(
    store: Store,
    identity: RunIdentity,
    reader: Reader,
    folder: Path,
    looks: list[Look],
    faulty: int,
    parsed: argparse.Namespace,
) -> ImportCount:
    """Store the samples that the run does not hold yet, a shard at a time."""
    index, _ = ledger.read_index(store, identity.run)
    known = {index.sample_id(row) for row in range(len(index))}
    missing = [look for look in looks if look.sample_id not in known]
    shards = imported = 0
    with (
        Progress("import", len(looks), quiet=parsed.quiet) as progress,
        tempfile.TemporaryDirectory(prefix="eaglefeed-import-") as scratch,
    ):
        progress.start_from(len(looks) - len(missing))
        for group in _filled(missing, parsed.batch_tokens):
            _store_batch(store, identity, reader, folder, group, Path(scratch), parsed.threads)
            shards, imported = shards + 1, imported + len(group)
            progress.advance(len(group))
    return ImportCount(imported, len(looks) - len(missing), faulty, shards)


def _start_run(store: Store, parsed: argparse.Namespace, reader: Reader, whole: list[Look]) -> RunIdentity:
    if not whole:
        raise UsageError(f"{parsed.folder}: no file without a fault; `eaglefeed check` says what is wrong")
    layers = [int(each) for each in parsed.layers.split(",")] if parsed.layers else None
    kind = kind_of(reader, parsed.folder, whole)
    identity = make_identity(parsed.name, parsed.model, layers, kind)
    if not store.create(run_key(identity.run), identity.to_json()):
        ledger.read_identity(store, identity.run).require_same(identity, f"{store.url}/{run_key(identity.run)}")
    norm = read_final_norm(parsed.model)
    if norm is not None:
        store.create(norm_key(identity.run), norm)
    return identity


def _filled(looks: list[Look], batch_tokens: int) -> Iterator[list[Look]]:
    group: list[Look] = []
    tokens = 0
    for look in looks:
        if group and tokens + look.num_tokens > batch_tokens:
            yield group
            group, tokens = [], 0
        group.append(look)
        tokens += look.num_tokens
    if group:
        yield group


def _store_batch(
    store: Store, identity: RunIdentity, reader: Reader, folder: Path, group: list[Look], scratch: Path, threads: int
) -> None:
    """The shard, then the manifest: as the storage worker does."""
    foreign = [reader.read(folder / look.path) for look in group]
    samples: tuple[Sample, ...] = tuple(as_sample(each) for each in foreign)
    batch = Batch(identity.run, samples)
    dumps = {
        sample.id: as_dump(identity, batch.id, sample, each) for sample, each in zip(samples, foreign, strict=True)
    }
    path = scratch / f"{batch.id}.shard"
    written = write_shard(path, identity, batch, dumps, threads=threads)
    key = shard_key(identity.run, batch.id)
    store.put_file(key, path, written.shard_checksum)
    path.unlink()
    manifest = Manifest(
        identity.run,
        batch.id,
        key,
        written.shard_bytes,
        written.shard_checksum,
        written.raw_bytes,
        written.samples,
        engine={"imported_from": reader.name},
        created_at=time.time(),
    )
    store.create(manifest_key(identity.run, batch.id), manifest.to_json())


def _tell(count: ImportCount, report: Report, identity: RunIdentity, parsed: argparse.Namespace) -> None:
    if parsed.json:
        kinds = Counter(fault.kind for fault in report.faults)
        record = {"run": identity.run, "imported": count.imported, "present": count.present, "faulty": count.faulty}
        print(json.dumps({**record, "shards": count.shards, "faults": kinds}))
        return
    print("\n".join(report.lines()))
    print(
        f"{count.imported:,} samples imported in {count.shards:,} shards, {count.present:,} there already, "
        f"{count.faulty:,} files left out; run {identity.run!r} at {parsed.store}, {identity.final_state} final state, "
        f"outputs of layers {list(identity.layer_ids)}"
    )
