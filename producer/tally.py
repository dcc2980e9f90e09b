"""What the command counts; rows = unique + duplicate + rejected, or it fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from eaglefeed.errors import EaglefeedError
from eaglefeed.records import Sample
from producer.tokens import Prepared


class CountsDisagree(EaglefeedError):
    """A row was counted twice or not at all: a fault of the producer, never of the data."""


@dataclass(slots=True)
class Tally:
    """Counts of settled rows. A row is settled when it is rejected, known as a duplicate, or enqueued.

    Attributes:
        rows_settled: rows whose fate is known; rows read but waiting for a full batch are not among them.
        skipped_stored: those of ``duplicate`` that were enqueued or stored before this command began.
        tokens, supervised_tokens: of unique samples.
        tools_left_out: usable rows whose tool definitions the template does not show.
        tokens_lost: by ``truncate_turn``, ``truncate`` or ``too-long``.
    """

    rows_settled: int = 0
    unique: int = 0
    duplicate: int = 0
    skipped_stored: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    batches: int = 0
    enqueued: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    truncated: Counter[str] = field(default_factory=Counter)
    tokens_lost: Counter[str] = field(default_factory=Counter)
    tools_left_out: int = 0
    broken_files: list[str] = field(default_factory=list)

    def reject(self, row: Prepared) -> None:
        self.rows_settled += 1
        self.rejected[row.reason] += 1
        if row.tokens_lost:
            self.tokens_lost[row.reason] += row.tokens_lost
        if row.reason == "broken-file":
            self.broken_files.append(f"{row.file}: {row.detail}")

    def see(self, row: Prepared) -> None:
        """Count what was found in a row, whatever becomes of it."""
        if row.shape:
            self.shapes[row.shape] += 1
        self.tools_left_out += row.tools_left_out
        if row.cut:
            self.truncated[row.cut] += 1
            self.tokens_lost[row.cut] += row.tokens_lost

    def repeat(self, was_stored: bool) -> None:
        self.rows_settled += 1
        self.duplicate += 1
        self.skipped_stored += was_stored

    def accept(self, samples: list[Sample], enqueued: bool = True) -> None:
        """Count one batch's samples as unique."""
        self.rows_settled += len(samples)
        self.unique += len(samples)
        self.tokens += sum(sample.num_tokens for sample in samples)
        self.supervised_tokens += sum(sample.num_supervised_tokens for sample in samples)
        self.batches += 1
        self.enqueued += len(samples) if enqueued else 0

    def check(self) -> None:
        """Raises CountsDisagree when rows and outcomes differ."""
        outcomes = self.unique + self.duplicate + self.rejected.total()
        if self.rows_settled != outcomes:
            raise CountsDisagree(
                f"{self.rows_settled} rows, but {self.unique} unique + {self.duplicate} duplicate + "
                f"{self.rejected.total()} rejected = {outcomes}. Please report this"
            )

    def summary(self) -> dict[str, Any]:
        return {
            "rows": self.rows_settled,
            "conversations": self.unique + self.duplicate,
            "unique": self.unique,
            "duplicate": self.duplicate,
            "rejected": dict(self.rejected.most_common()),
            "truncated": self.truncated.total(),
            "tokens_lost": dict(self.tokens_lost),
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "batches": self.batches,
            "enqueued": self.enqueued,
            "skipped_stored": self.skipped_stored,
            "tools_left_out": self.tools_left_out,
            "shapes": dict(self.shapes.most_common()),
        }
