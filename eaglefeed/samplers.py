"""How an epoch is cut into batches: at random, by similar lengths, or packed into rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eaglefeed.batch_sampler import BatchSampler, IntArray
from eaglefeed.errors import UsageError


class ShuffledBatchSampler(BatchSampler):
    """``batch_size`` samples a batch, in shuffled order; the last batch may be smaller."""

    def __init__(self, lengths: Sequence[int] | IntArray, batch_size: int, **options: Any) -> None:
        super().__init__(lengths, **options)
        self.batch_size = _positive(batch_size, "batch_size")

    def _plan(self) -> list[IntArray]:
        order = self._order()
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}


class LengthBucketBatchSampler(BatchSampler):
    """Batches of similar lengths, filled to ``max_tokens`` of padded size (samples x the longest of them).

    The shuffled order is cut into pools of ``pool_batches`` batches' worth; each pool is sorted by length and cut into
    batches, and the batches are shuffled again. A sample longer than ``max_tokens`` is a batch of its own.
    """

    def __init__(
        self, lengths: Sequence[int] | IntArray, max_tokens: int, *, pool_batches: int = 64, **options: Any
    ) -> None:
        super().__init__(lengths, **options)
        self.max_tokens = _positive(max_tokens, "max_tokens")
        self.pool_batches = _positive(pool_batches, "pool_batches")

    def _plan(self) -> list[IntArray]:
        pools = self._pools(self.max_tokens * self.pool_batches)
        batches = [
            batch for pool in pools for batch in self._filled(pool[np.argsort(self.lengths[pool], kind="stable")])
        ]
        return self._shuffled_again(batches)

    def _filled(self, pool: IntArray) -> list[IntArray]:
        cuts, first = [], 0
        for place, length in enumerate(self.lengths[pool]):  # ascending, so `length` is the longest so far
            if place > first and (place - first + 1) * length > self.max_tokens:
                cuts.append(place)
                first = place
        return [batch for batch in np.split(pool, cuts) if len(batch)]

    def _settings(self) -> dict[str, Any]:
        return {"max_tokens": self.max_tokens, "pool_batches": self.pool_batches}


class PackedBatchSampler(BatchSampler):
    """Samples packed end to end into rows of at most ``pack_tokens``, by first fit of decreasing length within a pool.

    Raises:
        UsageError: a sample is longer than ``pack_tokens``; select shorter ones (``dataset.select(max_tokens=…)``)
            rather than have their ends cut off unseen.
    """

    def __init__(
        self, lengths: Sequence[int] | IntArray, pack_tokens: int, *, pool_packs: int = 64, **options: Any
    ) -> None:
        super().__init__(lengths, **options)
        self.pack_tokens = _positive(pack_tokens, "pack_tokens")
        self.pool_packs = _positive(pool_packs, "pool_packs")
        if len(self.lengths) and int(self.lengths.max()) > pack_tokens:
            raise UsageError(
                f"{int((self.lengths > pack_tokens).sum())} samples are longer than pack_tokens={pack_tokens} "
                f"(the longest has {int(self.lengths.max())}): raise it, or select(max_tokens={pack_tokens})"
            )

    def _plan(self) -> list[IntArray]:
        pools = self._pools(self.pack_tokens * self.pool_packs)
        packs = [batch for pool in pools for batch in self._packed(pool)]
        return self._shuffled_again(packs)

    def _packed(self, pool: IntArray) -> list[IntArray]:
        packs: list[list[int]] = []
        room: list[int] = []
        for row in pool[np.argsort(-self.lengths[pool], kind="stable")]:
            length = int(self.lengths[row])
            place = next((place for place, free in enumerate(room) if free >= length), None)
            if place is None:
                packs.append([])
                room.append(self.pack_tokens)
                place = len(packs) - 1
            packs[place].append(int(row))
            room[place] -= length
        return [np.array(pack, np.int64) for pack in packs]

    def _settings(self) -> dict[str, Any]:
        return {"pack_tokens": self.pack_tokens, "pool_packs": self.pool_packs}


def _positive(value: int, name: str) -> int:
    if value <= 0:
        raise UsageError(f"{name}={value}: it must be positive")
    return value
