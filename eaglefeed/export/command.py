"""Write a run in a trainer's own format: streamed, in parallel, and continued where it was stopped."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from eaglefeed.dataset import Dataset
from eaglefeed.errors import EnvironmentFault
from eaglefeed.export.angelslim import AngelSlimExporter
from eaglefeed.export.automodel import AutomodelExporter
from eaglefeed.export.deepspec import DeepSpecExporter
from eaglefeed.export.exporter import Exporter, ExportOptions
from eaglefeed.export.job import export
from eaglefeed.export.modelopt import ModelOptExporter
from eaglefeed.export.specforge import SpecForgeExporter
from eaglefeed.export.speculators import SpeculatorsExporter
from eaglefeed.form import has_torch
from eaglefeed.opening import open_run
from eaglefeed.progress import byte_size

FORMATS: dict[str, type[Exporter]] = {
    exporter.name: exporter
    for exporter in (
        SpecForgeExporter,
        SpeculatorsExporter,
        ModelOptExporter,
        AngelSlimExporter,
        AutomodelExporter,
        DeepSpecExporter,
    )
}

EXAMPLE = """examples:
  eaglefeed export .eaglefeed/store/demo --format specforge ./features
  eaglefeed export s3://bucket/states --name kimi --format speculators ./data --select "tokens<=8192"
  eaglefeed export .eaglefeed/store/demo --format automodel ./cache --model ./SmolLM2-135M-Instruct"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's folder (directory or s3://…), or its store with --name")
    parser.add_argument("destination", metavar="DEST", type=Path, help="the folder to write to")
    parser.add_argument("--format", required=True, choices=FORMATS, help="whose format")
    parser.add_argument("--name", help="the run's name, where the store holds several")
    parser.add_argument("--select", default="", metavar="CONDITIONS", help='"tokens>=64,tokens<2048,first=1000,…"')
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1), help="files written at once")
    parser.add_argument("--draft-vocab", type=int, default=0, metavar="N", help="tokens of the draft vocabulary")
    parser.add_argument("--model", type=Path, metavar="DIR", help="the target's checkpoint (automodel: its lm_head)")
    parser.add_argument("--sequence-length", type=int, default=0, metavar="S", help="padded length (automodel)")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="target probabilities kept (automodel)")
    parser.add_argument("--samples-per-file", type=int, default=0, metavar="N", help="automodel and deepspec")
    parser.add_argument("--pre-norm", action="store_true", help="the final state before the norm (modelopt's flag)")
    parser.add_argument("--allow-incomplete", action="store_true", help="take what is there of an incomplete run")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="the end count as JSON")


def main(parsed: argparse.Namespace) -> int:
    if not has_torch():
        raise EnvironmentFault("trainers' formats are written with torch: pip install torch")
    options = ExportOptions(
        parsed.draft_vocab,
        parsed.model,
        parsed.sequence_length,
        parsed.top_k,
        parsed.samples_per_file,
        parsed.pre_norm,
        parsed.quiet,
    )
    exporter = make_exporter(parsed.format, _open(parsed), options)
    count = export(exporter, parsed.destination, max(1, parsed.threads), parsed.quiet)
    if parsed.json:
        print(json.dumps({"format": parsed.format, "destination": str(parsed.destination), **asdict(count)}))
    else:
        print(
            f"{count.samples:,} samples in {count.files:,} files, {byte_size(count.num_bytes)}, at {parsed.destination}"
            + (f" ({count.already_done:,} samples were there already)" if count.already_done else "")
        )
    return 0


def make_exporter(name: str, dataset: Dataset, options: ExportOptions | None = None) -> Exporter:
    """The exporter of a format over ``dataset``, whose final state is turned into what the format takes.

    Raises:
        UsageError: the run has no final state of that kind and none can be computed.
    """
    exporter = FORMATS[name](dataset, options or ExportOptions())
    exporter.dataset = dataset.with_form(aux="flat", final=exporter.final_state)
    return exporter


def _open(parsed: argparse.Namespace) -> Dataset:
    dataset = open_run(parsed.run, parsed.name, allow_incomplete=parsed.allow_incomplete)
    return dataset.select(parsed.select) if parsed.select else dataset
