"""What an audit finds: its numbers, and each problem by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, with the ids a person needs to look it up."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The outcome. ``unique`` = stored + rejected + missing; sizes are of all committed shards.

    Attributes:
        duplicate: copies beyond the first of samples that several batches hold.
        short: stored samples whose rows are not as many as their tokens.
        missing: enqueued samples that are neither whole in the store nor rejected.
        unique_from: where ``unique`` was counted, in words.
    """

    run: str
    unique: int
    stored: int
    rejected: int
    missing: int
    duplicate: int
    short: int
    tokens: int
    raw_bytes: int
    stored_bytes: int
    unique_from: str
    problems: tuple[Problem, ...]

    @property
    def ratio(self) -> float:
        return round(self.raw_bytes / self.stored_bytes, 4) if self.stored_bytes else 0.0

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def to_record(self) -> dict[str, Any]:
        """The JSON object of ``eaglefeed audit --json``."""
        keys = ("run", "unique", "stored", "rejected", "missing", "duplicate", "short", "tokens", "raw_bytes")
        return {**{key: getattr(self, key) for key in keys}, "stored_bytes": self.stored_bytes, "ratio": self.ratio}
