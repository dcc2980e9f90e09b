"""Which rows are taken: all, the first N, or N drawn at random and kept in their order."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from eaglefeed.errors import UsageError
from producer.rows import Row
from producer.sources import STDIN, Source


def chosen_rows(sources: list[Source], limit: int | None, seed: int | None) -> Iterator[Row]:
    """Rows of all sources in order. With a seed the input is read twice: once to count, once to take.

    Raises:
        UsageError: a seed without a limit, or with an input that can be read only once.
    """
    rows = chain.from_iterable(source.rows() for source in sources)
    if seed is None:
        return islice(rows, limit)
    if limit is None:
        raise UsageError("--seed draws a sample of the data: say how many rows with --limit N")
    once = [source.name for source in sources if source.name == STDIN]
    if once:
        raise UsageError("--seed reads the data twice, and the standard input can be read once: save it to a file")
    return _drawn(rows, sum(1 for source in sources for _ in source.rows()), limit, seed)


def _drawn(rows: Iterable[Row], num_rows: int, limit: int, seed: int) -> Iterator[Row]:
    chosen = set(random.Random(seed).sample(range(num_rows), min(limit, num_rows)))
    return (row for number, row in enumerate(rows) if number in chosen)
