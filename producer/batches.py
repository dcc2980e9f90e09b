"""Samples of like length, gathered until they fill a batch's token budget; the same input gives the same batches.

Legend: ``T`` tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglefeed.records import Sample

STEPS_PER_DOUBLING = 2
"""Buckets per doubling of length: the longest sample of a batch is at most about 1.5 times its shortest."""


class Batcher:
    """Holds what is not yet a batch: for each bucket less than one budget, so memory does not grow with the input."""

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self._buckets: dict[int, list[Sample]] = {}
        self._tokens: dict[int, int] = {}

    def add(self, sample: Sample) -> list[Sample] | None:
        """Take a sample; the samples of a batch when its bucket could not take this one too."""
        bucket = bucket_of(sample.num_tokens)
        full = None
        if self._tokens.get(bucket, 0) + sample.num_tokens > self.batch_tokens:
            full = self._take(bucket)
        self._buckets.setdefault(bucket, []).append(sample)
        self._tokens[bucket] = self._tokens.get(bucket, 0) + sample.num_tokens
        return full

    def rest(self) -> Iterator[list[Sample]]:
        """What is left at the end, neighbouring lengths together, longest first; nothing stays behind."""
        batch: list[Sample] = []
        tokens = 0
        for bucket in sorted(self._buckets, reverse=True):
            for sample in self._take(bucket) or []:
                if batch and tokens + sample.num_tokens > self.batch_tokens:
                    yield batch
                    batch, tokens = [], 0
                batch.append(sample)
                tokens += sample.num_tokens
        if batch:
            yield batch

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def _take(self, bucket: int) -> list[Sample] | None:
        self._tokens.pop(bucket, None)
        return self._buckets.pop(bucket, None) or None


def bucket_of(num_tokens: int) -> int:
    """0, 1, 2, … for lengths 1, 2, 3, 4, 6, 8, 12, 16, …: powers of two and the middles between them."""
    power = num_tokens.bit_length() - 1
    return STEPS_PER_DOUBLING * power + (num_tokens >= 3 << (power - 1) if power else 0)
