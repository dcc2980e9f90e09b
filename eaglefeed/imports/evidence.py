"""What only the folder as a whole can show: whether rows belong to their tokens, and on which side of the norm.

A low layer's output is mostly its own token: over a folder, rows of equal tokens lie close together. A sample whose
token ids are another's, or are shifted, has rows that lie with the wrong tokens. Each row is kept as 24 numbers (a
fixed random projection of its direction), at most ``ROWS`` of a sample; so the evidence of 100,000 samples takes about
300 MB.

Legend: ``R`` rows, ``K`` captured layers, ``H`` hidden width, ``P`` projected width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.imports.foreign import ForeignSample

PROJECTED = 24
ROWS = 64
MIN_ROWS = 8
"""Fewer rows whose token occurs in another sample prove nothing, either way."""

MATCH = 0.5
"""A sample whose rows agree with their tokens less than this part of the folder's median agreement is mismatched."""

NORM_FACTOR = 1.5
NORM_DEVIATIONS = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """What is kept of one sample: some rows' tokens and projections, and the final state's size."""

    tokens: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float16]
    final_size: float


@dataclass
class Evidence:
    """Traces of many samples, judged together."""

    traces: dict[str, Traces] = field(default_factory=dict)
    _projection: Any = None

    def add(self, path: str, sample: ForeignSample) -> None:
        """Keep a sample's traces; it has as many rows as tokens."""
        self.traces[path] = self.trace(sample)

    def trace(self, sample: ForeignSample) -> Traces:
        import torch

        # The first row of a sample is an attention sink in most models: its direction says nothing of its token.
        count = len(sample.token_ids)
        kept = torch.unique(torch.linspace(min(1, count - 1), count - 1, min(ROWS, count)).long())
        rows = sample.aux[kept, 0].float()
        directions = torch.nn.functional.normalize(rows, dim=-1)
        projected = directions @ self._projected(rows.shape[-1])
        size = sample.final.float().pow(2).mean(-1).sqrt().median()
        return Traces(sample.token_ids[kept].numpy(), projected.numpy().astype(np.float16), float(size))

    def mismatched(self) -> dict[str, float]:
        """Samples whose rows are not those of their tokens, with their agreement relative to the folder's median."""
        agreement = self.agreement()
        if len(agreement) < 3:
            return {}
        usual = float(np.median(list(agreement.values())))
        if usual <= 0:
            return {}
        return {path: value / usual for path, value in agreement.items() if value < MATCH * usual}

    def agreement(self) -> dict[str, float]:
        """For each sample with enough evidence, how well its rows agree with their tokens' rows in other samples.

        The median over the second half of its kept rows: samples that share a system prompt agree in the first.
        """
        if not self.traces:
            return {}
        tokens = np.concatenate([trace.tokens for trace in self.traces.values()])
        rows = np.concatenate([trace.rows for trace in self.traces.values()]).astype(np.float32)
        rows -= rows.mean(0)
        unique, places = np.unique(tokens, return_inverse=True)
        sums = np.zeros((len(unique), PROJECTED), np.float32)
        np.add.at(sums, places, rows)
        counts = np.bincount(places)
        found: dict[str, float] = {}
        start = 0
        for path, trace in self.traces.items():
            end = start + len(trace.tokens)
            value = _agreement(places[start:end], rows[start:end], sums, counts)
            if value is not None:
                found[path] = value
            start = end
        return found

    def other_norm(self) -> dict[str, tuple[float, float]]:
        """Samples whose final state is of another size than the rest's: (its size, the folder's median)."""
        if len(self.traces) < 3:
            return {}
        sizes = np.log(np.array([max(trace.final_size, 1e-30) for trace in self.traces.values()]))
        usual = float(np.median(sizes))
        spread = float(np.median(np.abs(sizes - usual)))
        limit = max(np.log(NORM_FACTOR), NORM_DEVIATIONS * spread)
        return {
            path: (trace.final_size, float(np.exp(usual)))
            for (path, trace), size in zip(self.traces.items(), sizes, strict=True)
            if abs(size - usual) > limit
        }

    def _projected(self, width: int) -> Any:
        import torch

        if self._projection is None or len(self._projection) != width:
            signs = np.random.default_rng(0).integers(0, 2, (width, PROJECTED)) * 2 - 1
            self._projection = torch.from_numpy((signs / np.sqrt(PROJECTED)).astype(np.float32))
        return self._projection


def _agreement(
    places: npt.NDArray[np.int64],
    rows: npt.NDArray[np.float32],
    sums: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
) -> float | None:
    own_counts = np.bincount(places, minlength=len(counts))
    own_sums = np.zeros_like(sums)
    np.add.at(own_sums, places, rows)
    half = slice(len(places) // 2, None)
    others = counts[places[half]] - own_counts[places[half]]
    usable = others > 0
    if int(usable.sum()) < min(MIN_ROWS, len(places)):
        return None
    centres = (sums - own_sums)[places[half]][usable] / others[usable][:, None]
    mine = rows[half][usable]
    lengths = np.linalg.norm(centres, axis=-1) * np.linalg.norm(mine, axis=-1)
    return float(np.median((centres * mine).sum(-1) / np.maximum(lengths, 1e-12)))
