"""speculators' offline data: an Arrow data set, and ``hidden_states/hs_{row}.safetensors`` beside it, a file a row.

Its layer numbers are vLLM's: k means the *input* of layer k, so "output of layer k" is k + 1 here. The final state is
pre-norm, in the last slot.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from eaglefeed.errors import EnvironmentFault
from eaglefeed.export.exporter import Exporter, Unit, compact, one_by_one
from eaglefeed.export.files import save_torch
from eaglefeed.readahead import prefetch_tokens
from eaglefeed.vocabulary import count_supervised, frequencies


class SpeculatorsExporter(Exporter):
    """``hidden_states`` ``[T, K+1, H]``, the last slot the pre-norm final state; ``token_ids`` int64 ``[T]``."""

    name: ClassVar[str] = "speculators"
    layer_convention: ClassVar[str] = "input_of_layer"
    num_layers: ClassVar[int | None] = None

    @property
    def final_state(self) -> str:
        return "pre_norm"

    def require_carried(self) -> None:
        super().require_carried()
        try:
            import datasets  # noqa: F401  # only whether it is there
        except ImportError as error:
            raise EnvironmentFault(
                "the speculators format is a Hugging Face data set on disk: pip install datasets"
            ) from error

    def units(self) -> Iterator[Unit]:
        return one_by_one(len(self.dataset), lambda number: f"hidden_states/hs_{number}.safetensors")

    def write(self, path: Path, numbers: range, samples: Sequence[dict[str, Any]]) -> None:
        import torch
        from safetensors.torch import save_file

        sample = samples[0]
        width = sample["final"].shape[-1]
        captured = sample["aux"].reshape(len(sample["token_ids"]), -1, width)
        states = torch.cat([captured, sample["final"].unsqueeze(1)], 1)
        save_file({"hidden_states": compact(states), "token_ids": sample["token_ids"]}, path)

    def write_extras(self, folder: Path) -> list[str]:
        """The Arrow data set (``input_ids``, ``loss_mask``, ``seq_len``, torch format) and ``token_freq.pt``."""
        self._write_rows(folder)
        counts = frequencies(count_supervised(self.dataset, self.options.quiet))
        return ["dataset_info.json", "state.json", save_torch(folder, "token_freq.pt", counts)]

    def _write_rows(self, folder: Path) -> None:
        import datasets

        features = datasets.Features(
            {
                "input_ids": datasets.Sequence(datasets.Value("int64")),
                "loss_mask": datasets.Sequence(datasets.Value("int64")),
                "seq_len": datasets.Value("int64"),
            }
        )
        datasets.disable_progress_bars()
        temporary = folder / ".arrow.part"
        shutil.rmtree(temporary, ignore_errors=True)
        rows = datasets.Dataset.from_generator(
            self._rows, features=features, cache_dir=str(temporary / "cache"), keep_in_memory=False
        )
        # In torch's format: its loader compares rows with tensors, and fails on lists.
        rows.set_format("torch")
        rows.save_to_disk(str(temporary / "rows"))
        for path in sorted((temporary / "rows").iterdir(), key=lambda each: each.name == "state.json"):
            path.replace(folder / path.name)
        shutil.rmtree(temporary)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for token_ids, loss_mask in prefetch_tokens(self.dataset):
            yield {"input_ids": token_ids, "loss_mask": loss_mask.astype("int64"), "seq_len": len(token_ids)}
