"""Pauses between attempts: doubling, with jitter, so that nodes that failed together do not come back together."""

from __future__ import annotations

import random

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0


class Backoff:
    """The pause before the next attempt, longer with each failure in a row."""

    def __init__(self, first_seconds: float = FIRST_PAUSE_SECONDS, longest_seconds: float = LONGEST_PAUSE_SECONDS):
        self._first, self._longest = first_seconds, longest_seconds
        self.failures = 0

    def next_seconds(self) -> float:
        pause = min(self._first * 2.0 ** min(self.failures, 32), self._longest)
        self.failures += 1
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0
