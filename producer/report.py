"""The counts of a command, as a person reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from producer.tally import Tally


def sentences(summary: dict[str, Any], rejects: Path) -> str:
    """Rows and what became of them, a line each kind; the first line adds up."""
    num_rejected = sum(summary["rejected"].values())
    shapes = ", ".join(f"{count:,} {name}" for name, count in summary["shapes"].items())
    lines = [
        f"{summary['rows']:,} rows = {summary['unique']:,} unique + {summary['duplicate']:,} duplicate "
        f"({summary['skipped_stored']:,} of them known before) + {num_rejected:,} rejected",
        f"{summary['tokens']:,} tokens, {summary['supervised_tokens']:,} supervised, "
        f"in {summary['batches']:,} batches: {summary['enqueued']:,} samples enqueued",
    ]
    if shapes:
        lines.append(f"shapes: {shapes}")
    if summary["truncated"]:
        lost = sum(count for how, count in summary["tokens_lost"].items() if how != "too-long")
        lines.append(f"{summary['truncated']:,} truncated, {lost:,} tokens lost")
    if num_rejected:
        lines.append(f"rejected, each with its line in {rejects}:")
        lines += [f"  {count:>7,}  {reason}" for reason, count in summary["rejected"].items()]
    if "near_duplicates" in summary:
        lines += near_sentences(summary["near_duplicates"])
    return "\n".join(lines)


def near_sentences(near: dict[str, Any]) -> list[str]:
    return [
        f"{near['conversations']:,} conversations share more than {near['threshold']:,} first tokens with an earlier "
        f"one; a prefix cache would have swallowed {near['tokens']:,} rows of their states",
        *(
            f"  {top['conversations']:>7,}  share {top['tokens']:,} tokens from line {top['first']}"
            for top in near["top"]
        ),
    ]


def broken_files(tally: Tally, file: TextIO) -> int:
    """Exit code 1, each file named, where a file could not be read to its end."""
    for broken in tally.broken_files:
        print(f"eaglefeed: {broken}; the rows behind that place were not read", file=file)
    return 1 if tally.broken_files else 0
