"""Count the tokens of all stored samples, and choose the drafter's vocabulary from them.

Counted over every sample in the store, whichever command stored it (AngelSlim counts the newly made alone).
Written to --out: token_freq.pt ({token id: count of supervised}), vocab_mapping.pt (d2t int64 [Vd] as offsets,
t2d bool [V]: SpecForge, AngelSlim), d2t.npy and t2d.npy (speculators), selected_token_ids.json (Automodel).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from eaglefeed.dataset import Dataset
from eaglefeed.errors import EnvironmentFault, UsageError
from eaglefeed.export.files import publish, save_text, save_torch
from eaglefeed.form import has_torch
from eaglefeed.opening import open_run
from eaglefeed.vocabulary import DraftVocabulary, IntArray, count_supervised, draft_vocabulary, frequencies
from storage.run_choice import add_run_arguments, chosen_run

DEFAULT_SIZE = 32_000
SHOWN = 20

EXAMPLE = "example: eaglefeed vocab --run config/smollm2.toml --draft-vocab 16000 --out vocabulary"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--draft-vocab", type=int, metavar="N", help=f"tokens of it; default {DEFAULT_SIZE:,} or all")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write the trainers' files there")
    parser.add_argument("--allow-incomplete", action="store_true", help="count what is there of an incomplete run")
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")


def main(parsed: argparse.Namespace) -> int:
    if parsed.out and not has_torch():
        raise EnvironmentFault("trainers read torch files: pip install torch")
    run = chosen_run(parsed)
    dataset = open_run(run.settings.store.url, run.name, allow_incomplete=parsed.allow_incomplete)
    if not len(dataset):
        raise UsageError(f"run {run.name} has no stored sample yet")
    counts = count_supervised(dataset, parsed.quiet)
    vocabulary = draft_vocabulary(counts, parsed.draft_vocab or min(DEFAULT_SIZE, len(counts)))
    files = write_files(parsed.out, counts, vocabulary) if parsed.out else []
    summary = _summary(dataset, counts, vocabulary, files)
    print(json.dumps(summary) if parsed.json else _sentences(summary, counts))
    return 0


def write_files(folder: Path, counts: IntArray, vocabulary: DraftVocabulary) -> list[str]:
    """The files of all trainers; each appears whole or not at all."""
    import torch

    mapping = {"d2t": torch.from_numpy(vocabulary.d2t), "t2d": torch.from_numpy(vocabulary.t2d)}
    return [
        save_torch(folder, "token_freq.pt", frequencies(counts)),
        save_torch(folder, "vocab_mapping.pt", mapping),
        _save_array(folder, "d2t.npy", vocabulary.d2t),
        _save_array(folder, "t2d.npy", vocabulary.t2d),
        save_text(folder, "selected_token_ids.json", json.dumps(vocabulary.selected.tolist())),
    ]


def _save_array(folder: Path, name: str, array: Any) -> str:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    publish(folder / name, write)
    return name


def _summary(dataset: Dataset, counts: IntArray, vocabulary: DraftVocabulary, files: list[str]) -> dict[str, Any]:
    return {
        "run": dataset.identity.run,
        "samples": len(dataset),
        "supervised_tokens": int(counts.sum()),
        "vocabulary": len(counts),
        "tokens_seen": int(np.count_nonzero(counts)),
        "draft_vocabulary": len(vocabulary.selected),
        "coverage": round(vocabulary.coverage, 6),
        "files": files,
    }


def _sentences(summary: dict[str, Any], counts: IntArray) -> str:
    top = np.argsort(-counts, kind="stable")[:SHOWN]
    lines = [
        f"{summary['supervised_tokens']:,} supervised tokens in all {summary['samples']:,} stored samples, "
        f"{summary['tokens_seen']:,} different of {summary['vocabulary']:,}",
        f"a draft vocabulary of {summary['draft_vocabulary']:,} covers {100 * summary['coverage']:.2f} % of them",
        "most frequent ids: " + " ".join(f"{token}x{counts[token]}" for token in top if counts[token]),
    ]
    if summary["files"]:
        lines.append("wrote " + ", ".join(summary["files"]))
    return "\n".join(lines)
