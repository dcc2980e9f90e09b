"""Rows for the stand's producers, file by file: enough that something is in work whenever a fault comes."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from tests.chaos.stand import Stand, wait_until
from tests.checkpoints import VOCABULARY

LEAST_ROWS = 50
"""Of a file: a producer takes some seconds to start."""

PATIENCE_SECONDS = 8.0
"""So long the next fault waits for something to meet, while a producer starts."""

REPEATED_ROWS = 5
"""So many rows of each file were there before: they are found again, and enqueued once."""


class Feed:
    """``num_samples`` rows at least, spread over the faults; more where the stand would be idle before they are done.

    A fault that comes while nothing is in work proves nothing.
    """

    def __init__(self, stand: Stand, num_samples: int) -> None:
        self._stand, self._wanted, self._rows_at_once = stand, num_samples, max(LEAST_ROWS, num_samples // 10)
        self.given = 0

    def more(self, number: int = 0) -> None:
        """The next file, and its producer."""
        number = number or self._rows_at_once
        again = min(REPEATED_ROWS, self.given)
        self._stand.produce(rows(self.given, number) + rows(self.given - again, again))
        self.given += number

    def keep_up(self, share: float) -> None:
        """As much of the rows as of the faults, and always a producer at work: it waits while the queue is full."""
        while self.given < share * self._wanted:
            self.more(min(self._rows_at_once, self._wanted - self.given))
        if not any(producer.is_running for producer in self._stand.producers):
            self.more()
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: self._stand.num_in_work(self._stand.counted()) > 0, PATIENCE_SECONDS, "work")


def rows(first: int, number: int) -> list[dict[str, Any]]:
    """Tokenized rows, distinct by their number, 8 to 200 tokens long."""
    found = []
    for place in range(first, first + number):
        rng = np.random.default_rng([23, place])
        tokens = rng.integers(4, VOCABULARY, int(rng.integers(8, 200))).tolist()
        tokens[:3] = [4 + (place >> shift & 127) for shift in (0, 7, 14)]
        found.append({"input_ids": tokens, "loss_mask": [int(at >= len(tokens) // 2) for at in range(len(tokens))]})
    return found
