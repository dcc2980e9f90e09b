"""Batches read ahead by threads, in order, within a limit of bytes: for loops that want no DataLoader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from eaglefeed.dataset import Dataset
from eaglefeed.records import LossMask, TokenIds
from eaglefeed.threads import in_order

DEFAULT_BYTES = 2 << 30


def prefetch(
    dataset: Dataset, batches: Iterable[Sequence[int]], *, max_bytes: int = DEFAULT_BYTES, threads: int = 4
) -> Iterator[list[dict[str, Any]]]:
    """Give each batch of sample numbers as its samples, in order, while later ones are fetched and decoded.

    Args:
        max_bytes: what the batches in flight may take, encoded and decoded together; one batch is always let through.
        threads: batches at work at once.

    Raises:
        CorruptData, StoreUnavailable: of the batch whose turn it is; nothing is skipped.
    """
    reader = replace(dataset, threads=1)
    queue: deque[tuple[Future[list[dict[str, Any]]], int]] = deque()
    in_flight = 0
    with ThreadPoolExecutor(threads, "eaglefeed-prefetch") as pool:
        try:
            for batch in batches:
                needed = batch_bytes(dataset, batch)
                while queue and in_flight + needed > max_bytes:
                    future, held = queue.popleft()
                    yield future.result()
                    in_flight -= held
                queue.append((pool.submit(reader.__getitems__, list(batch)), needed))
                in_flight += needed
                while queue and queue[0][0].done():
                    future, held = queue.popleft()
                    yield future.result()
                    in_flight -= held
            while queue:
                yield queue.popleft()[0].result()
        finally:
            for future, _ in queue:
                future.cancel()


def prefetch_tokens(dataset: Dataset, chunk: int = 256, threads: int = 4) -> Iterator[tuple[TokenIds, LossMask]]:
    """Token ids uint32 and loss mask uint8 of every sample in order, the states left where they are."""
    reader = replace(dataset, threads=1)
    chunks = (range(start, min(start + chunk, len(dataset))) for start in range(0, len(dataset), chunk))
    for each in in_order(reader.tokens, chunks, threads):
        yield from each


def batch_bytes(dataset: Dataset, batch: Sequence[int]) -> int:
    """What a batch takes while it is made: its encoded ranges, its states, and 24 bytes a token for ids and mask."""
    rows = dataset.rows[list(batch)]
    index = dataset.index
    encoded = int((index.ends[rows] - index.starts[rows]).sum())
    return encoded + int(index.num_tokens[rows].sum()) * (dataset.identity.bytes_per_token + 24)
