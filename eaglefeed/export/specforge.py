"""SpecForge's offline EAGLE-3 features: ``rows_{g}-{g+2000}/data_{i}.ckpt``, one ``torch.save`` a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from eaglefeed.export.exporter import Exporter, Unit, compact, one_by_one
from eaglefeed.export.files import save_torch

GROUP = 2000


class SpecForgeExporter(Exporter):
    """``input_ids``, ``loss_mask`` int64 ``[T]``; ``hidden_state`` ``[1, T, H]``, the final state, post-norm;
    ``aux_hidden_state`` ``[1, T, 3H]``, low, middle and high layer."""

    name: ClassVar[str] = "specforge"

    def units(self) -> Iterator[Unit]:
        def path(number: int) -> str:
            group = number // GROUP * GROUP
            return f"rows_{group}-{group + GROUP}/data_{number}.ckpt"

        return one_by_one(len(self.dataset), path)

    def write(self, path: Path, numbers: range, samples: Sequence[dict[str, Any]]) -> None:
        import torch

        sample = samples[0]
        record = {
            "input_ids": sample["token_ids"],
            "loss_mask": sample["loss_mask"],
            "hidden_state": compact(sample["final"]).unsqueeze(0),
            "aux_hidden_state": compact(sample["aux"]).unsqueeze(0),
        }
        torch.save(record, path)

    def write_extras(self, folder: Path) -> list[str]:
        """``vocab_mapping/vocab_mapping.pt``: ``d2t`` offsets int64 ``[Vd]``, ``t2d`` bool ``[V]``."""
        import torch

        vocabulary = self.make_vocabulary()
        mapping = {"d2t": torch.from_numpy(vocabulary.d2t), "t2d": torch.from_numpy(vocabulary.t2d)}
        return [save_torch(folder, "vocab_mapping/vocab_mapping.pt", mapping)]
