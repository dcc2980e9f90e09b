"""A run read shard by shard: an iterable view for sequential reading, one request a batch.

Importing this module imports torch where it is installed: ``DataLoader`` tells iterable data sets by their base class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglefeed.batch_sampler import BatchSampler, IntArray, shuffled
from eaglefeed.dataset import Dataset
from eaglefeed.readahead import DEFAULT_BYTES, prefetch

if TYPE_CHECKING:
    Base: Any = object
else:
    try:
        from torch.utils.data import IterableDataset as Base
    except ImportError:
        Base = object


class ShardBatchSampler(BatchSampler):
    """Batches of samples that lie side by side in one shard; shards in shuffled order, their samples in the shard's.

    Args:
        dataset: of which the batches are.
        batch_size: the most samples in a batch; the last of a shard may be smaller.
    """

    def __init__(self, dataset: Dataset, batch_size: int = 32, **options: Any) -> None:
        super().__init__(dataset.lengths, **options)
        self.batch_size = batch_size
        self._shards = dataset.index.shards[dataset.rows]
        self._starts = dataset.index.starts[dataset.rows]

    def _plan(self) -> list[IntArray]:
        order = np.lexsort((self._starts, self._shards)).astype(np.int64)
        edges = np.flatnonzero(np.diff(self._shards[order])) + 1
        shards = [shard for shard in np.split(order, edges) if len(shard)]
        sequence: Sequence[int] = range(len(shards))
        if self.shuffle:
            sequence = shuffled(len(shards), self.seed, self.epoch).tolist()
        return [
            shards[number][start : start + self.batch_size]
            for number in sequence
            for start in range(0, len(shards[number]), self.batch_size)
        ]

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}


class ShardStream(Base):
    """Iterates batches of a run, shard by shard; ``DataLoader(stream, batch_size=None, num_workers=…)`` takes it.

    Each worker of a loader reads every n-th batch of its rank, so the loader's order is the sampler's. Resume with
    ``stream.sampler.state_dict(steps)`` and ``load_state_dict``.

    Args:
        collate: makes of each list of samples what is given out; None gives the list.
        prefetch_bytes: bound of what is read ahead.
        options: of ``BatchSampler``: ``seed``, ``shuffle``, ``rank``, ``world_size``, ``even``.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 32,
        collate: Callable[[list[dict[str, Any]]], Any] | None = None,
        prefetch_bytes: int = DEFAULT_BYTES,
        **options: Any,
    ) -> None:
        self.dataset, self.collate, self.prefetch_bytes = dataset, collate, prefetch_bytes
        self.sampler = ShardBatchSampler(dataset, batch_size, **options)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        mine = (batch for place, batch in enumerate(self.sampler) if place % workers == worker)
        for samples in prefetch(self.dataset, mine, max_bytes=self.prefetch_bytes, threads=self.dataset.threads):
            yield self.collate(samples) if self.collate else samples


def _worker() -> tuple[int, int]:
    """(this loader worker's number, how many there are)."""
    try:
        from torch.utils.data import get_worker_info
    except ImportError:
        return 0, 1
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
