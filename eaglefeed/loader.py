"""A DataLoader that knows where it is: stop after any batch and go on there, with any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from eaglefeed.batch_sampler import BatchSampler
from eaglefeed.dataset import Dataset


class Loader:
    """``torch.utils.data.DataLoader`` over a batch sampler, counting the batches that were handed out.

    Workers draw ahead of the training loop, so a sampler alone cannot say how far training is; this can.

    Args:
        collate: ``PaddedCollator``, ``PackedCollator`` or any function of a list of samples; None gives the list.
        options: of ``DataLoader``: ``num_workers``, ``multiprocessing_context``, ``prefetch_factor``, ``pin_memory``, …
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: BatchSampler,
        collate: Callable[[list[dict[str, Any]]], Any] | None = None,
        **options: Any,
    ) -> None:
        from torch.utils.data import DataLoader

        self.sampler = sampler
        self._loader: Any = DataLoader(
            dataset,  # map-style by its methods, without torch's base class
            batch_sampler=sampler,
            collate_fn=collate or _as_list,
            **options,
        )
        self._steps = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self._steps = 0
        for batch in self._loader:
            # Counted before it is trained on: whoever saves the state in the loop's body has that batch behind it.
            self._steps += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Start ``epoch`` from its beginning; call it before each pass."""
        self.sampler.set_epoch(epoch)
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The place after the batch that was handed out last; equal on all ranks that made the same number of steps."""
        return self.sampler.state_dict(self._steps)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises IdentityMismatch when ``state`` belongs to other samples or settings."""
        self.sampler.load_state_dict(state)
        self._steps = 0


def _as_list(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples
