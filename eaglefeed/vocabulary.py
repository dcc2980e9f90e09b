"""Token frequencies of a run's supervised tokens, and the draft vocabulary made of them.

Counted over every sample, whatever a resume skipped: AngelSlim counts only what it newly made.

Legend: ``V`` target vocabulary, ``Vd`` draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eaglefeed.dataset import Dataset
from eaglefeed.errors import CorruptData, UsageError
from eaglefeed.progress import Progress
from eaglefeed.readahead import prefetch_tokens

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """Which target tokens the drafter can say.

    Attributes:
        selected: int64 ``[Vd]``, target ids, ascending.
        d2t: int64 ``[Vd]``, **offsets**: draft id ``i`` is target id ``i + d2t[i]``.
        t2d: bool ``[V]``, whether a target id is in the draft vocabulary.
        coverage: part of the supervised tokens that it can say.
    """

    selected: IntArray
    d2t: IntArray
    t2d: npt.NDArray[np.bool_]
    coverage: float


def count_supervised(dataset: Dataset, quiet: bool = True) -> IntArray:
    """How often each token is supervised, int64 ``[V]``.

    Raises:
        CorruptData: a token id is not in the run's vocabulary.
    """
    size = dataset.identity.vocab_size
    counts = np.zeros(size, np.int64)
    with Progress("counting tokens", len(dataset), quiet=quiet) as progress:
        for number, (token_ids, loss_mask) in enumerate(prefetch_tokens(dataset)):
            supervised = token_ids[loss_mask != 0]
            if len(supervised) and int(supervised.max()) >= size:
                raise CorruptData(
                    f"sample {dataset.sample_id(number)} holds token {int(supervised.max())} of a vocabulary of {size}"
                )
            counts += np.bincount(supervised, minlength=size)
            progress.update(number + 1)
    return counts


def draft_vocabulary(counts: IntArray, size: int) -> DraftVocabulary:
    """The ``size`` most frequent tokens, equal counts by lower id, so never-seen ids fill up from 0.

    Raises:
        UsageError: ``size`` is not between 1 and V.
    """
    if not 0 < size <= len(counts):
        raise UsageError(f"a draft vocabulary of {size}: the target has {len(counts)} tokens")
    selected = np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int64)
    t2d = np.zeros(len(counts), bool)
    t2d[selected] = True
    total = int(counts.sum())
    coverage = float(counts[selected].sum()) / total if total else 0.0
    return DraftVocabulary(selected, selected - np.arange(size), t2d, coverage)


def frequencies(counts: IntArray) -> dict[int, int]:
    """``{token id: count}`` of the tokens that occur."""
    return {int(token): int(counts[token]) for token in np.flatnonzero(counts)}
