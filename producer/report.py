"""The counts of a command, as a person reads them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, TextIO

from eaglefeed.progress import duration
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
    if summary["tools_left_out"]:
        lines.append(f"{summary['tools_left_out']:,} rows have tool definitions that this model's template leaves out")
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


class Pause:
    """Says once for each pause that the queue is full, and when it goes on."""

    def __init__(self, limit: int, quiet: bool, file: TextIO | None = None) -> None:
        self.limit, self.quiet = limit, quiet
        self._file = file or sys.stderr
        self._paused_at = 0.0

    def __call__(self, waiting: int) -> None:
        """``waiting`` batches are queued; fewer than the limit ends the pause."""
        if self.quiet or (waiting >= self.limit) == bool(self._paused_at):
            return
        if self._paused_at:
            seconds, self._paused_at = time.monotonic() - self._paused_at, 0.0
            sentence = f"went on after {duration(seconds)}"
        else:
            self._paused_at = time.monotonic()
            sentence = f"paused: {waiting:,} batches are queued and data.max_queued_batches is {self.limit:,}"
        print(f"\neaglefeed: {sentence}", file=self._file, flush=True)


def broken_files(tally: Tally, file: TextIO) -> int:
    """Exit code 1, each file named, where a file could not be read to its end."""
    for broken in tally.broken_files:
        print(f"eaglefeed: {broken}; the rows behind that place were not read", file=file)
    return 1 if tally.broken_files else 0
