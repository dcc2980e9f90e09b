"""NeMo Automodel's EAGLE-3 cache, format version 2: padded, stacked shards with the target's own distribution.

The format has no final state: the exporter runs the target's head over it and keeps probabilities of the draft
vocabulary. Ids, loss mask and distribution are shifted left by one; aux and attention mask are not.

Legend: ``S`` padded length, ``V`` target and ``Vd`` draft vocabulary, ``H`` hidden width, ``K`` captured layers (3).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from eaglefeed.errors import UsageError
from eaglefeed.export.checkpoint import read_embeddings, read_head
from eaglefeed.export.exporter import Exporter, Unit, several_a_file
from eaglefeed.export.files import publish, save_text
from eaglefeed.vocabulary import DraftVocabulary

SAMPLES_PER_FILE = 256


class AutomodelExporter(Exporter):
    """``shard-{:06d}.safetensors``, ``target_embeddings.safetensors`` and ``manifest.json``."""

    name: ClassVar[str] = "automodel"

    def require_carried(self) -> None:
        super().require_carried()
        if self.options.model is None:
            raise UsageError(
                "automodel holds the target's probabilities instead of its final state: --model CHECKPOINT "
                "says where its lm_head is"
            )
        longest = int(self.dataset.lengths.max())
        if self.sequence_length < longest:
            raise UsageError(
                f"--sequence-length {self.sequence_length}: the longest selected sample has {longest} tokens; "
                f'raise it, or --select "tokens<={self.sequence_length}"'
            )

    @property
    def sequence_length(self) -> int:
        return self.options.sequence_length or int(self.dataset.lengths.max())

    @property
    def samples_per_file(self) -> int:
        return self.options.samples_per_file or SAMPLES_PER_FILE

    @cached_property
    def vocabulary(self) -> DraftVocabulary:
        return self.make_vocabulary()  # type: ignore[no-any-return]

    @cached_property
    def head(self) -> Any:
        """float32 ``[V, H]``."""
        return read_head(self._checkpoint()).float()

    def units(self) -> Iterator[Unit]:
        return several_a_file(len(self.dataset), self.samples_per_file, lambda file: f"shard-{file:06d}.safetensors")

    def write(self, path: Path, numbers: range, samples: Sequence[dict[str, Any]]) -> None:
        import torch
        from safetensors.torch import save_file

        rows = [self._row(sample) for sample in samples]
        save_file({name: torch.stack([row[name] for row in rows]) for name in rows[0]}, path)

    def write_extras(self, folder: Path) -> list[str]:
        from safetensors.torch import save_file

        weight = read_embeddings(self._checkpoint()).float().contiguous()
        publish(folder / "target_embeddings.safetensors", lambda path: save_file({"weight": weight}, path))
        manifest = json.dumps(self._manifest(), indent=2, sort_keys=True)
        return ["target_embeddings.safetensors", save_text(folder, "manifest.json", manifest)]

    def _row(self, sample: dict[str, Any]) -> dict[str, Any]:
        """One sample's tensors, ``S`` positions each."""
        import torch

        T, S = len(sample["token_ids"]), self.sequence_length
        loss_mask = _padded(sample["loss_mask"][1:], S)
        logits = torch.zeros(S, self.head.shape[0])
        logits[: T - 1] = sample["final"][1:].float() @ self.head.T
        selected = torch.from_numpy(self.vocabulary.selected)
        in_draft = torch.from_numpy(self.vocabulary.t2d)[logits.argmax(-1)]
        probs = torch.softmax(logits.index_select(-1, selected), -1)
        return {
            "input_ids": _padded(sample["token_ids"][1:], S),
            "attention_mask": _padded(torch.ones(T, dtype=torch.int64), S),
            "loss_mask": loss_mask,
            "aux_hidden_states": _padded(sample["aux"], S),
            "position_mask": (in_draft & loss_mask.bool()).unsqueeze(-1),
            **self._kept(probs),
        }

    def _kept(self, probs: Any) -> dict[str, Any]:
        """All probabilities ``[S, Vd]``, or the ``k`` greatest, made to sum to 1 again, with their places."""
        import torch

        if not self._top_k():
            return {"target_probs": probs.to(torch.bfloat16)}
        values, places = torch.topk(probs, self._top_k(), -1)
        values = values / values.sum(-1, keepdim=True)
        return {
            "target_probs_values": values.to(torch.bfloat16),
            "target_probs_indices": places.to(torch.int32),
        }

    def _top_k(self) -> int:
        """0 where all are kept: their reader takes a k of the whole vocabulary for "all"."""
        return self.options.top_k if self.options.top_k < len(self.vocabulary.selected) else 0

    def _manifest(self) -> dict[str, Any]:
        identity = self.dataset.identity
        return {
            "format_version": 2,
            "target_model": identity.model,
            "target_vocab_size": identity.vocab_size,
            "draft_vocab_size": len(self.vocabulary.selected),
            "seq_length": self.sequence_length,
            "dtype": "bf16",
            "num_samples": len(self.dataset),
            "shard_size": self.samples_per_file,
            "target_probs_topk": self._top_k(),
            "aux_hidden_dim": len(identity.layer_ids) * identity.hidden_size,
            "aux_layer_ids": self.layer_numbers(),
            "selected_token_ids": self.vocabulary.selected.tolist(),
            "input_data": f"eaglefeed run {identity.run}",
            "split": None,
            "shuffle_seed": 0,
            # How this run's loss mask was made is in its run.json; both of Automodel's own options are off.
            "mask_reasoning_content": False,
            "mask_generation_prompt": False,
        }

    def _checkpoint(self) -> Path:
        if self.options.model is None:
            raise UsageError("automodel needs --model CHECKPOINT")
        return self.options.model


def _padded(tensor: Any, length: int) -> Any:
    import torch

    out = torch.zeros((length, *tensor.shape[1:]), dtype=tensor.dtype)
    out[: len(tensor)] = tensor
    return out
