"""A trainer's sample as our own records, bit for bit: dtype and values are kept, only the order of slots is ours.

Legend: ``T`` tokens, ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from eaglefeed.bits import bits_of_torch
from eaglefeed.dump import Dump, DumpHeader
from eaglefeed.errors import UsageError
from eaglefeed.identity import RunIdentity
from eaglefeed.imports.check import Look
from eaglefeed.imports.foreign import ForeignSample, Reader
from eaglefeed.imports.origin import DumpKind
from eaglefeed.records import Sample


def kind_of(reader: Reader, folder: Path, looks: list[Look]) -> DumpKind:
    """What the whole files have in common; raises UsageError when some are before the norm and some after it."""
    finals = Counter(look.final_state for look in looks)
    if len(finals) > 1:
        counts = ", ".join(f"{count} {kind}" for kind, count in finals.items())
        raise UsageError(f"{folder} mixes final states ({counts}): a run holds one kind; import them as two")
    first = reader.read(folder / looks[0].path)
    _, K, H = first.aux.shape
    dtype = str(first.aux.dtype).removeprefix("torch.")
    return DumpKind(reader.name, K, H, dtype, first.final_state, max(look.num_tokens for look in looks))


def as_sample(foreign: ForeignSample) -> Sample:
    return Sample(foreign.token_ids.numpy().astype(np.uint32), foreign.loss_mask.numpy().astype(np.uint8))


def as_dump(identity: RunIdentity, batch_id: str, sample: Sample, foreign: ForeignSample) -> Dump:
    """Captured layers and final state side by side, ``[T, K+1, H]``, as the engine's plugin writes them."""
    import torch

    joined = torch.cat([foreign.aux, foreign.final.to(foreign.aux.dtype).unsqueeze(1)], 1)
    states = bits_of_torch(joined)
    header = DumpHeader(
        run=identity.run,
        batch_id=batch_id,
        sample_id=sample.id,
        token_digest=sample.id,
        num_tokens=sample.num_tokens,
        num_slots=states.shape[1],
        hidden_size=states.shape[2],
        dtype=str(joined.dtype).removeprefix("torch."),
        layer_ids=identity.layer_ids,
        rows_crc32=zlib.crc32(states.data),
        engine=identity.engine,
    )
    return Dump(header, sample.token_ids, np.arange(sample.num_tokens, dtype=np.uint32), states)
