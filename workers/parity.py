"""How far two sets of states are apart, with a limit for each kind of model.

Two measures: the plain Frobenius one, as everybody quotes it, and one in which each row weighs the same. A first
token's massive activations are hundreds of times larger than the rest, and alone the plain measure would hide a fault
in all other rows behind them.

Legend: ``T`` tokens, ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eaglefeed.dump import Dump

LIMITS = {
    ("bfloat16", False): 0.01,
    ("bfloat16", True): 0.03,
    ("float16", False): 0.01,
    ("float16", True): 0.03,
    ("float32", False): 1e-5,
    ("float32", True): 1e-4,
}
"""Relative error against transformers, by dtype and whether the model is a mixture of experts."""

NO_WORSE = 1.1
"""Beyond its limit a layer still passes when the engine is as near to float32 as transformers in the run's dtype is."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Over all rows of all prompts.

    Attributes:
        relative_error: ``|a - b| / |b|`` in the Frobenius norm.
        row_error: root mean square over rows of a row's own ``|a - b| / |b|``.
        worst_row_cosine: the smallest cosine of a row with its counterpart.
        float32_error: the row error against transformers in float32; None where that is the reference.
        reference_error: transformers' own in the run's dtype against float32: what the dtype alone costs.
    """

    relative_error: float
    row_error: float
    worst_row_cosine: float
    float32_error: float | None = None
    reference_error: float | None = None

    def is_within(self, limit: float) -> bool:
        """Within the limit (twice it, row by row), or no worse than transformers in the run's dtype is itself."""
        if self.relative_error < limit and self.row_error < 2 * limit:
            return True
        if self.float32_error is None or self.reference_error is None:
            return False
        return self.float32_error <= NO_WORSE * self.reference_error


def distance(ours: Sequence[Any], theirs: Sequence[Any]) -> Distance:
    """Between lists of ``[T, H]`` tensors, one a prompt."""
    gaps, norms, cosines = [], [], []
    for a, b in zip(ours, theirs, strict=True):
        a, b = a.double(), b.double()
        gaps.append((a - b).norm(dim=-1).numpy())
        norms.append(b.norm(dim=-1).clamp_min(1e-30).numpy())
        cosines.append((a * b).sum(dim=-1).numpy() / (a.norm(dim=-1).clamp_min(1e-30).numpy() * norms[-1]))
    gap, norm = np.concatenate(gaps), np.concatenate(norms)
    return Distance(
        relative_error=float(np.linalg.norm(gap) / np.linalg.norm(norm)),
        row_error=float(np.sqrt(np.mean(np.square(gap / norm)))),
        worst_row_cosine=float(np.concatenate(cosines).min()),
    )


def against_reference(ours: Sequence[Any], same_dtype: Sequence[Any], float32: Sequence[Any] | None) -> Distance:
    """The engine's states against transformers' in the run's dtype and, where it was run, in float32."""
    plain = distance(ours, same_dtype)
    if float32 is None:
        return plain
    exact, reference = distance(ours, float32), distance(same_dtype, float32)
    return replace(plain, float32_error=exact.row_error, reference_error=reference.row_error)


def states_of(dump: Dump) -> Any:
    """A dump's states as a float32 tensor ``[T, S, H]``, ``S`` slots."""
    import torch

    bits = np.array(dump.states)
    signed = bits.view(np.int32 if bits.itemsize == 4 else np.int16)
    return torch.from_numpy(signed).view(getattr(torch, dump.header.dtype)).float()
