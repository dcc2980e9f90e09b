"""Tensors of ours and of a trainer's reader, compared bit for bit; ten training steps, shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

import eaglefeed
from eaglefeed.dataset import Dataset

STEPS = 10


class Comparison:
    """Counts equal tensors and stops at the first that differs."""

    def __init__(self) -> None:
        self.tensors = self.values = 0

    def equal(self, what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Same shape, dtype and bits, or exit with what differs."""
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            sys.exit(f"{what}: {ours.dtype}{list(ours.shape)} here, {theirs.dtype}{list(theirs.shape)} there")
        if not torch.equal(_bits(ours), _bits(theirs)):
            places = (_bits(ours) != _bits(theirs)).nonzero()
            sys.exit(f"{what}: {len(places)} of {ours.numel()} values differ, at {places[0].tolist()} first")
        self.tensors += 1
        self.values += ours.numel()

    def report(self, what: str) -> None:
        print(f"   {what}: {self.tensors:,} tensors, {self.values:,} values, equal bit for bit", flush=True)
        self.tensors = self.values = 0


def arguments(final: str) -> tuple[Dataset, Path, Path]:
    """The run as the export saw it, the export's folder, and the model's."""
    run, folder, model, select = sys.argv[1:5]
    torch.manual_seed(0)
    torch.set_num_threads(2)
    return eaglefeed.open(run, final=final).select(select), Path(folder), Path(model)


def train(
    what: str, module: torch.nn.Module, batches: Iterable[Any], loss_of: Callable[[Any], torch.Tensor], rate: float
) -> None:
    """Ten AdamW steps over ``batches``, their losses on one line; exits when one is not finite."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate)
    losses = []
    for batch in islice(cycle(batches), STEPS):
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(float(loss))
    if not all(loss == loss and abs(loss) != float("inf") for loss in losses):
        sys.exit(f"{what}: a loss is not finite: {losses}")
    print(f"   {what}, loss of {STEPS} steps: {' '.join(f'{loss:.3f}' for loss in losses)}", flush=True)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    whole = {2: torch.int16, 4: torch.int32}.get(tensor.element_size())
    return tensor.contiguous().view(whole) if tensor.is_floating_point() and whole else tensor
