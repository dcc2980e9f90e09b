"""Model-Optimizer's dumped states: ``{conversation_id}.pt``, read with ``weights_only=True`` by a recursive glob."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from eaglefeed.export.exporter import Exporter, Unit, compact, one_by_one


class ModelOptExporter(Exporter):
    """``hidden_states`` ``[T, H]`` is the final state; ``hidden_states_prenorm`` says whether before the norm.

    The conversation id is the sample id. No other ``.pt`` may lie below the folder: its reader takes every one for a
    sample.
    """

    name: ClassVar[str] = "modelopt"
    num_layers: ClassVar[int | None] = None

    @property
    def final_state(self) -> str:
        return "pre_norm" if self.options.pre_norm else "post_norm"

    def units(self) -> Iterator[Unit]:
        return one_by_one(len(self.dataset), lambda number: f"{self.dataset.sample_id(number)}.pt")

    def write(self, path: Path, numbers: range, samples: Sequence[dict[str, Any]]) -> None:
        import torch

        sample = samples[0]
        record = {
            "input_ids": sample["token_ids"],
            "hidden_states": compact(sample["final"]),
            "aux_hidden_states": compact(sample["aux"]),
            "loss_mask": sample["loss_mask"],
            "conversation_id": sample["sample_id"],
            "hidden_states_prenorm": self.options.pre_norm,
        }
        torch.save(record, path)
