"""What every trainer format has in common: output files, each made of a stretch of samples, and what it cannot carry.

Legend: ``T`` tokens of a sample, ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from eaglefeed.dataset import Dataset
from eaglefeed.errors import UsageError
from eaglefeed.vocabulary import count_supervised, draft_vocabulary

DEFAULT_DRAFT_VOCABULARY = 32_000


@dataclass(frozen=True, slots=True)
class Unit:
    """One output file, made of the samples ``numbers``."""

    path: str
    numbers: range


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line may say beyond the run and the format.

    Attributes:
        draft_vocabulary: tokens of the draft vocabulary; 0 = 32,000, or all where the target has fewer.
        model: the target's checkpoint, for formats that hold what its head computes.
        sequence_length: of formats that pad; 0 = the longest sample.
        top_k: keep only so many target probabilities a position; 0 = all.
        samples_per_file: of formats that put several in a file; 0 = the format's own number.
        pre_norm: store the final state before the norm, where the format has a flag for it.
    """

    draft_vocabulary: int = 0
    model: Path | None = None
    sequence_length: int = 0
    top_k: int = 0
    samples_per_file: int = 0
    pre_norm: bool = False
    quiet: bool = False


@dataclass
class Exporter(ABC):
    """Writes one format. Subclasses name what the format is and what it takes."""

    dataset: Dataset
    options: ExportOptions = field(default_factory=ExportOptions)

    name: ClassVar[str]
    layer_convention: ClassVar[str] = "output_of_layer"
    num_layers: ClassVar[int | None] = 3
    """Captured layers that the format holds; None = any number."""

    @property
    def final_state(self) -> str:
        """``pre_norm`` or ``post_norm``: what the format's final state is."""
        return "post_norm"

    def require_carried(self) -> None:
        """Raises UsageError with the reason when the format cannot hold this run."""
        identity = self.dataset.identity
        captured = len(identity.layer_ids)
        if self.num_layers is not None and captured != self.num_layers:
            raise UsageError(
                f"{self.name} holds {self.num_layers} captured layers and run {identity.run!r} has {captured}: "
                f"{list(identity.layer_ids)}"
            )
        if identity.dtype != "bfloat16":
            raise UsageError(f"{self.name} holds bfloat16 and the states of run {identity.run!r} are {identity.dtype}")
        if not len(self.dataset):
            raise UsageError("no sample is selected: there is nothing to export")

    @abstractmethod
    def units(self) -> Iterator[Unit]:
        """The files, in order; the same for the same samples, so that a resume finds its place."""

    @abstractmethod
    def write(self, path: Path, numbers: range, samples: Sequence[dict[str, Any]]) -> None:
        """Write one unit to ``path``, a temporary name."""

    def write_extras(self, folder: Path) -> list[str]:
        """Write what stands beside the samples; returns the paths written, relative to ``folder``."""
        return []

    def layer_numbers(self) -> list[int]:
        """The captured layers in the format's own numbering."""
        shift = 1 if self.layer_convention == "input_of_layer" else 0
        return [layer + shift for layer in self.dataset.layer_ids]

    def describe(self) -> dict[str, Any]:
        """What ``eaglefeed-export.json`` records of the format."""
        return {
            "format": self.name,
            "final_state": self.final_state,
            "layer_ids": self.layer_numbers(),
            "layer_convention": self.layer_convention,
        }

    def make_vocabulary(self) -> Any:
        """The draft vocabulary of every selected sample, whether this call writes it or an earlier one did."""
        counts = count_supervised(self.dataset, self.options.quiet)
        size = self.options.draft_vocabulary or min(DEFAULT_DRAFT_VOCABULARY, len(counts))
        return draft_vocabulary(counts, size)


def one_by_one(count: int, path: Any) -> Iterator[Unit]:
    """A file a sample, named by ``path(number)``."""
    for number in range(count):
        yield Unit(path(number), range(number, number + 1))


def several_a_file(count: int, size: int, path: Any) -> Iterator[Unit]:
    """``size`` samples a file, named by ``path(file number)``; the last may hold fewer."""
    for file, start in enumerate(range(0, count, size)):
        yield Unit(path(file), range(start, min(start + size, count)))


def compact(tensor: Any) -> Any:
    """A contiguous copy: ``torch.save`` of a view would write all of the memory it looks into."""
    import torch

    return tensor.clone(memory_format=torch.contiguous_format)


def require_binary_mask(sample: dict[str, Any], name: str) -> None:
    """Raises UsageError when the loss mask is not 0/1."""
    mask = sample["loss_mask"]
    if bool(((mask != 0) & (mask != 1)).any()):
        raise UsageError(
            f"{name} takes a loss mask of 0 and 1, and sample {sample['sample_id']} has the value {int(mask.max())}"
        )
