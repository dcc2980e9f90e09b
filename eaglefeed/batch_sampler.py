"""Deterministic orders of samples and batches, the same on any number of ranks and across a resume.

An epoch is one global list of batches, computed from the lengths, the seed and the epoch alone. Step ``s`` of ``W``
ranks takes the entries ``s*W … s*W + W - 1``; a resume is a place in that list. So no rank needs to know of another,
and a run stopped on four ranks goes on with two: no sample twice, none missing.

The tail is not padded with repeated samples: ranks may differ by one step at the end of an epoch. ``even=True`` gives
each rank the same number of steps by ending the epoch at the last whole round, for loops that synchronize every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.errors import IdentityMismatch, UsageError

IntArray = npt.NDArray[np.int64]


def shuffled(count: int, seed: int, epoch: int) -> IntArray:
    """A permutation of ``range(count)``: splitmix64 of (seed, epoch, number), sorted.

    Own arithmetic rather than a library's generator, whose streams change between versions.
    """
    with np.errstate(over="ignore"):
        salt = _splitmix64(np.array([seed], np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(epoch))
        keys = _splitmix64(np.arange(count, dtype=np.uint64) ^ salt)
    return np.argsort(keys, kind="stable").astype(np.int64)


class BatchSampler:
    """Gives this rank's batches (lists of row numbers) of an epoch; for ``DataLoader(batch_sampler=…)``.

    Subclasses say how an epoch's batches are made, in ``_plan``.

    Args:
        lengths: tokens of each sample, ``dataset.lengths``.
        seed, shuffle: the order; without ``shuffle`` it is the data set's own.
        rank, world_size: default to ``torch.distributed``'s, where it is initialized, else 0 of 1.
        even: every rank gets the same number of batches; up to ``world_size - 1`` batches at the end are left out.
    """

    def __init__(
        self,
        lengths: Sequence[int] | IntArray,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        even: bool = False,
    ) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.seed, self.shuffle, self.even = seed, shuffle, even
        default_rank, default_size = _distributed()
        self.rank = default_rank if rank is None else rank
        self.world_size = default_size if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank {self.rank} of {self.world_size}")
        self.epoch = 0
        self._first = 0
        self._planned: tuple[int, list[IntArray]] | None = None

    def plan(self) -> list[IntArray]:
        """The epoch's batches of all ranks, in order."""
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = (self.epoch, self._plan())
        return self._planned[1]

    def set_epoch(self, epoch: int) -> None:
        """Start ``epoch`` from its beginning."""
        self.epoch, self._first = epoch, 0

    def __len__(self) -> int:
        """Batches that remain for this rank in this epoch."""
        remaining = self._end() - self._first
        return max(0, -(-(remaining - self.rank) // self.world_size))

    def __iter__(self) -> Iterator[list[int]]:
        """From the start of the epoch, or from the place that ``load_state_dict`` gave."""
        plan, first, end = self.plan(), self._first, self._end()
        for place in range(first + self.rank, end, self.world_size):
            yield plan[place].tolist()

    def state_dict(self, steps: int) -> dict[str, Any]:
        """The place after ``steps`` further batches on each rank were *trained on*.

        The sampler cannot count them itself: a ``DataLoader`` with workers draws batches ahead of the training loop.
        ``eaglefeed.loader.Loader`` counts for you.
        """
        return {
            "epoch": self.epoch,
            "batches": min(self._first + steps * self.world_size, self._end()),
            "fingerprint": self.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken, with any number of ranks.

        Raises:
            IdentityMismatch: the state belongs to other samples, another seed or other batch settings.
        """
        if state["fingerprint"] != self.fingerprint():
            raise IdentityMismatch(
                f"the sampler's state was taken from {state['fingerprint']}, and this is {self.fingerprint()}: "
                "resuming would repeat or miss samples"
            )
        self.epoch, self._first = int(state["epoch"]), int(state["batches"])

    def fingerprint(self) -> dict[str, Any]:
        """What the plan depends on."""
        weights = np.arange(1, len(self.lengths) + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            digest = int((_splitmix64(weights) * self.lengths.astype(np.uint64)).sum(dtype=np.uint64))
        return {
            "sampler": type(self).__name__,
            "samples": len(self.lengths),
            "lengths": f"{digest:016x}",
            "seed": self.seed,
            "shuffle": self.shuffle,
            **self._settings(),
        }

    def _plan(self) -> list[IntArray]:
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def _order(self) -> IntArray:
        count = len(self.lengths)
        return shuffled(count, self.seed, self.epoch) if self.shuffle else np.arange(count, dtype=np.int64)

    def _pools(self, pool_tokens: int) -> list[IntArray]:
        """The order, cut into stretches of about ``pool_tokens``."""
        order = self._order()
        totals = np.cumsum(self.lengths[order])
        marks = np.arange(pool_tokens, int(totals[-1]) if len(order) else 0, pool_tokens)
        return np.split(order, np.searchsorted(totals, marks))

    def _shuffled_again(self, batches: list[IntArray]) -> list[IntArray]:
        if not self.shuffle:
            return batches
        return [batches[place] for place in shuffled(len(batches), self.seed + 1, self.epoch)]

    def _end(self) -> int:
        count = len(self.plan())
        if not self.even:
            return count
        return self._first + (count - self._first) // self.world_size * self.world_size


def _splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _distributed() -> tuple[int, int]:
    """(rank, world size) of torch.distributed, where the program uses it already."""
    import sys

    if "torch.distributed" in sys.modules:
        import torch.distributed as distributed

        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
