"""An export from beginning to end: what is done already, the rest in parallel, what stands beside it, and the count.

``DEST/eaglefeed-export.json`` says what is exported; ``DEST/eaglefeed-export.done`` has a line for every finished file
(path, bytes), written after its rename. A file counts as done when its line is there and its size agrees, so a
truncated or foreign one is written anew.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eaglefeed.errors import CorruptData, IdentityMismatch
from eaglefeed.export.exporter import Exporter, Unit, require_binary_mask
from eaglefeed.export.files import publish, save_text
from eaglefeed.progress import Progress, byte_size
from eaglefeed.threads import in_order

RECORD = "eaglefeed-export.json"
DONE = "eaglefeed-export.done"


@dataclass(frozen=True, slots=True)
class ExportCount:
    """What an export ended with; ``files`` and ``num_bytes`` were counted on the disk."""

    samples: int
    files: int
    already_done: int
    num_bytes: int


def export(exporter: Exporter, folder: Path, threads: int = 2, quiet: bool = False) -> ExportCount:
    """Write every file that is not there yet, then count them all.

    Raises:
        UsageError: the format cannot carry the run or a sample, with the reason.
        IdentityMismatch: ``folder`` holds another export, and how it differs.
        CorruptData: after the last file the folder does not hold what was written.
    """
    exporter.require_carried()
    folder.mkdir(parents=True, exist_ok=True)
    _claim(exporter, folder)
    done = _finished(folder)
    units = [unit for unit in exporter.units() if unit.path not in done]
    already = len(exporter.dataset) - sum(len(unit.numbers) for unit in units)
    with (
        (folder / DONE).open("a", encoding="utf-8", buffering=1) as journal,
        Progress(f"export to {exporter.name}", len(exporter.dataset), quiet=quiet) as progress,
    ):
        progress.start_from(already)
        _write_units(exporter, folder, units, threads, journal, progress)
    exporter.write_extras(folder)
    return _counted(exporter, folder, already)


def _write_units(
    exporter: Exporter, folder: Path, units: list[Unit], threads: int, journal: Any, progress: Progress
) -> None:
    lock = threading.Lock()
    reader = replace(exporter.dataset, threads=1)
    written = [0]

    def write(unit: Unit) -> None:
        samples = reader.__getitems__(list(unit.numbers))
        for sample in samples:
            require_binary_mask(sample, exporter.name)
        num_bytes = publish(folder / unit.path, lambda path: exporter.write(path, unit.numbers, samples))
        with lock:
            journal.write(json.dumps([unit.path, num_bytes]) + "\n")
            written[0] += num_bytes
            progress.advance(len(unit.numbers), written=byte_size(written[0]))

    for _ in in_order(write, units, threads):
        pass


def _claim(exporter: Exporter, folder: Path) -> None:
    """Say whose export ``folder`` is, or find that it is this one."""
    record = _record(exporter)
    path = folder / RECORD
    if not path.exists():
        if any(folder.iterdir()):
            raise IdentityMismatch(f"{folder} is not empty and holds no eaglefeed export; choose another folder")
        save_text(folder, RECORD, json.dumps(record, indent=1))
        return
    found = json.loads(path.read_text("utf-8"))
    differing = [name for name in record if found.get(name) != record[name]]
    if differing:
        raise IdentityMismatch(
            f"{folder} holds another export: "
            + "; ".join(f"{name} {found.get(name)!r} there, {record[name]!r} here" for name in differing)
            + ". Choose another folder, or remove that one."
        )


def _record(exporter: Exporter) -> dict[str, Any]:
    dataset = exporter.dataset
    digest = hashlib.blake2b(dataset.index.ids[dataset.rows].tobytes(), digest_size=16).hexdigest()
    options = {
        name: value if isinstance(value, (int, str, bool)) else str(value)
        for name, value in (
            (name, getattr(exporter.options, name)) for name in exporter.options.__dataclass_fields__ if name != "quiet"
        )
        if value
    }
    return {
        **exporter.describe(),
        "run": dataset.identity.run,
        "model": dataset.identity.model,
        "model_config_sha256": dataset.identity.model_config_sha256,
        "samples": len(dataset),
        "samples_digest": digest,
        "options": options,
    }


def _finished(folder: Path) -> set[str]:
    """Paths with a line in the journal and a file of that size."""
    path = folder / DONE
    if not path.exists():
        return set()
    sizes: dict[str, int] = {}
    for line in path.read_text("utf-8").splitlines():
        try:
            name, num_bytes = json.loads(line)
        except ValueError:
            continue  # the line that was being written when the process died
        sizes[name] = num_bytes
    return {name for name, size in sizes.items() if _size(folder / name) == size}


def _counted(exporter: Exporter, folder: Path, already: int) -> ExportCount:
    """What is really there; raises CorruptData when a file is not."""
    done = _finished(folder)
    samples = files = num_bytes = 0
    absent: list[str] = []
    for unit in exporter.units():
        if unit.path in done:
            samples, files = samples + len(unit.numbers), files + 1
            num_bytes += _size(folder / unit.path)
        else:
            absent.append(unit.path)
    if absent:
        raise CorruptData(
            f"{folder}: {len(absent)} of {files + len(absent)} files are missing or of another size than written, "
            f"{absent[0]} first; the same command writes them anew"
        )
    return ExportCount(samples, files, already, num_bytes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
