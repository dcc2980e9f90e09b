"""Batches for EAGLE-3 training, as the two main trainers' own collators make them.

A drafter at position ``t`` sees the states of tokens ``0 … t`` and the *next* token ``t+1``, and predicts token ``t+2``
(the target's own distribution at position ``t+1``). Somebody has to shift by one; who, is the difference:

=================  ======================================  ======================================
                   ``PaddedCollator`` (SpecForge)          ``PackedCollator`` (speculators)
=================  ======================================  ======================================
rows               one sample each, zeros on the right     samples end to end, zeros at the end
shift              none: SpecForge's model shifts          done here: aux of ``t`` beside the id,
                   ids and targets itself                  mask and final state of ``t + 1``
last position      its mask is 0: no next token exists     gone: a sample of T gives T - 1
final state        post-norm (``target``)                  pre-norm (``verifier_last_…``)
=================  ======================================  ======================================

Legend: ``B`` samples of a batch, ``N`` the longest of them, ``T`` tokens of a sample, ``K`` layers, ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eaglefeed.errors import UsageError


@dataclass(frozen=True, slots=True)
class PaddedCollator:
    """Samples to a padded batch, one a row.

    Gives ``input_ids``, ``attention_mask``, ``loss_mask`` int64 ``[B, N]``, ``hidden_state [B, N, K*H]`` and
    ``target [B, N, H]``.

    Args:
        max_length: cut longer samples at their end, as SpecForge does (``max_len``); None takes them whole.
        multiple: pad ``N`` up to a multiple of this.

    Raises:
        UsageError: the samples' final state is pre-norm: open the run with ``final="post_norm"``.
    """

    max_length: int | None = None
    multiple: int = 1

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import torch

        _require_final(samples, "post_norm", "PaddedCollator")
        lengths = [min(len(sample["token_ids"]), self.max_length or len(sample["token_ids"])) for sample in samples]
        width = -(-max(lengths) // self.multiple) * self.multiple

        def stacked(name: str) -> Any:
            first = samples[0][name]
            out = torch.zeros((len(samples), width, *first.shape[1:]), dtype=first.dtype)
            for row, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
                out[row, :length] = sample[name][:length]
            return out

        loss_mask = stacked("loss_mask").to(torch.int64)
        attention_mask = torch.zeros_like(loss_mask)
        for row, length in enumerate(lengths):
            attention_mask[row, :length] = 1
            loss_mask[row, length - 1] = 0
        return {
            "input_ids": stacked("token_ids"),
            "attention_mask": attention_mask,
            "loss_mask": loss_mask,
            "hidden_state": stacked("aux"),
            "target": stacked("final"),
        }


@dataclass(frozen=True, slots=True)
class PackedCollator:
    """Samples to one row of ``pack_tokens``, shifted; for batches of ``PackedBatchSampler``.

    Gives, each with a leading axis of 1: ``hidden_states [P, K*H]``, ``verifier_last_hidden_states [P, H]``,
    ``input_ids``, ``loss_mask``, ``position_ids`` (from 1) and ``document_ids`` (0, 1, …, and -1 in the padding), ``P =
    pack_tokens``.

    Raises:
        UsageError: the samples do not fit, or their final state is post-norm.
    """

    pack_tokens: int

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        import torch

        _require_final(samples, "pre_norm", "PackedCollator")
        lengths = [len(sample["token_ids"]) - 1 for sample in samples]
        if sum(lengths) > self.pack_tokens:
            raise UsageError(f"{sum(lengths)} tokens do not fit in a pack of {self.pack_tokens}")

        def packed(parts: list[Any], fill: int = 0) -> Any:
            out = torch.full((self.pack_tokens, *parts[0].shape[1:]), fill, dtype=parts[0].dtype)
            torch.cat(parts, out=out[: sum(lengths)])
            return out.unsqueeze(0)

        return {
            "hidden_states": packed([sample["aux"][:-1] for sample in samples]),
            "input_ids": packed([sample["token_ids"][1:] for sample in samples]),
            "verifier_last_hidden_states": packed([sample["final"][1:] for sample in samples]),
            "loss_mask": packed([sample["loss_mask"][1:] for sample in samples]),
            "position_ids": packed([torch.arange(1, length + 1) for length in lengths]),
            "document_ids": packed([torch.full((length,), number) for number, length in enumerate(lengths)], fill=-1),
        }


def _require_final(samples: Sequence[dict[str, Any]], kind: str, who: str) -> None:
    for sample in samples:
        if sample["final_state"] != kind:
            raise UsageError(
                f"{who} takes {kind} final states and sample {sample['sample_id']} has a {sample['final_state']} one: "
                f'eaglefeed.open(…, final="{kind}")'
            )
        if sample["aux"].ndim != 2:
            raise UsageError(f'{who} takes aux as [T, K*H]: eaglefeed.open(…, aux="flat")')
