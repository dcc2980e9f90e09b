"""What can be wrong with one dump by itself: rows, padding, zeros, numbers, mask.

Legend: ``T`` tokens, ``R`` rows of states, ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eaglefeed.imports.foreign import ForeignSample

PADDING_RUN = 4
"""So many equal token ids at the end, all unsupervised, are padding."""

KINDS = {
    "unreadable": "damaged or truncated files",
    "shape": "files that are not of the format",
    "missing": "rows of the data set without states",
    "short": "fewer rows of states than tokens",
    "long": "more rows of states than tokens",
    "padded": "padding on the right",
    "zero-rows": "rows of nothing but zeros",
    "not-finite": "NaN or infinity",
    "bad-mask": "a loss mask that is not 0 and 1",
    "no-supervised-token": "a loss mask of zeros alone",
    "duplicate": "a sample that another file holds already",
    "mismatched-ids": "token ids that the states do not belong to",
    "other-norm": "a final state on the other side of the final norm than the rest",
    "other-width": "another hidden width or number of layers than the rest",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with one file; ``kind`` is a key of ``KINDS``."""

    path: str
    kind: str
    detail: str


def own_faults(path: str, sample: ForeignSample) -> Iterator[Fault]:
    """Everything that the file alone shows; the first fault of the rows hides those that follow from it."""
    mask = sample.loss_mask
    if bool(((mask != 0) & (mask != 1)).any()):
        yield Fault(path, "bad-mask", f"the loss mask has the value {int(mask.max())}")
    elif not bool(mask.any()):
        yield Fault(path, "no-supervised-token", f"none of {len(mask)} tokens is supervised")
    yield from _row_faults(path, sample)


def _row_faults(path: str, sample: ForeignSample) -> Iterator[Fault]:
    T = len(sample.token_ids)
    for name, states in (("captured layers", sample.aux), ("final state", sample.final)):
        if len(states) != T:
            kind = "short" if len(states) < T else "long"
            yield Fault(path, kind, f"{name}: {len(states)} rows for {T} tokens ({abs(len(states) - T)} of difference)")
            return
    padding = padding_tokens(sample)
    if padding:
        token = int(sample.token_ids[-1])
        yield Fault(path, "padded", f"the last {padding} of {T} tokens are {token}, unsupervised")
        return
    yield from _value_faults(path, sample)


def _value_faults(path: str, sample: ForeignSample) -> Iterator[Fault]:
    import torch

    zero = (sample.aux == 0).all(-1).any(-1) | (sample.final == 0).all(-1)
    if bool(zero.any()):
        rows = zero.nonzero().flatten()
        yield Fault(path, "zero-rows", f"{len(rows)} rows are zero, {int(rows[0])} to {int(rows[-1])} of {len(zero)}")
    broken = ~torch.isfinite(sample.aux).flatten(1).all(-1) | ~torch.isfinite(sample.final).all(-1)
    if bool(broken.any()):
        rows = broken.nonzero().flatten()
        yield Fault(path, "not-finite", f"{len(rows)} rows hold NaN or infinity, row {int(rows[0])} first")


def padding_tokens(sample: ForeignSample) -> int:
    """How many tokens at the end are padding: unsupervised, all equal, and many or without states."""
    import torch

    token_ids, mask = sample.token_ids, sample.loss_mask
    same = (token_ids == token_ids[-1]) & (mask == 0)
    run = int(torch.cumprod(same.flip(0).long(), 0).sum())
    if run >= PADDING_RUN:
        return run
    zero = (sample.aux == 0).flatten(1).all(-1) & (sample.final == 0).all(-1)
    zero_run = int(torch.cumprod(zero.flip(0).long(), 0).sum())
    return zero_run if 0 < zero_run <= run else 0
