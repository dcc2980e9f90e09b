"""The form in which a trainer gets a sample: torch tensors, aux flat or stacked, final pre- or post-norm.

Legend: ``T`` tokens, ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglefeed.bits import bits_of_float32, float32_of_bits, torch_of_bits
from eaglefeed.errors import CorruptData, UsageError
from eaglefeed.identity import RunIdentity
from eaglefeed.norm import FinalNorm

if TYPE_CHECKING:
    from eaglefeed.shard import SampleStates

FINAL_STATES = {"pre_norm", "post_norm"}


@dataclass(frozen=True, slots=True)
class SampleForm:
    """How ``tensors`` gives a sample.

    Attributes:
        aux: ``flat`` (``[T, K*H]``) or ``stacked`` (``[T, K, H]``).
        final: ``pre_norm`` or ``post_norm``: what ``final`` holds.
        num_layers: K, the slots in front of the final states'.
        slot: of the stored final state that ``final`` is, or is computed from.
        norm: applied to that state; None where it is the one wanted.
        pin_memory: states are decoded into page-locked memory, where torch has CUDA.
    """

    aux: str
    final: str
    num_layers: int
    slot: int
    norm: FinalNorm | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        if self.aux not in ("flat", "stacked"):
            raise UsageError(f'aux={self.aux!r}: "flat" or "stacked"')

    def tensors(self, sample_id: str, states: SampleStates, dtype: str) -> dict[str, Any]:
        """``aux`` and ``final`` are views of one buffer; ``clone()`` what outlives the sample."""
        if has_torch():
            return self._torch(sample_id, states, dtype)
        return self._numpy(sample_id, states, dtype)

    def _torch(self, sample_id: str, states: SampleStates, dtype: str) -> dict[str, Any]:
        import torch

        rows = torch_of_bits(states.states, dtype)
        final = rows[:, self.slot]
        return {
            "sample_id": sample_id,
            "token_ids": torch.from_numpy(states.token_ids.astype(np.int64)),
            "loss_mask": torch.from_numpy(states.loss_mask.astype(np.int64)),
            "aux": self._shaped(rows),
            "final": self.norm.apply(final) if self.norm else final,
            "final_state": self.final,
        }

    def _numpy(self, sample_id: str, states: SampleStates, dtype: str) -> dict[str, Any]:
        rows = float32_of_bits(states.states, dtype)
        final = rows[:, self.slot]
        if self.norm:
            # Rounded as the tensor would be, so that both forms hold the same values.
            final = float32_of_bits(bits_of_float32(self.norm.apply(final), dtype), dtype)
        return {
            "sample_id": sample_id,
            "token_ids": states.token_ids.astype(np.int64),
            "loss_mask": states.loss_mask.astype(np.int64),
            "aux": self._shaped(rows),
            "final": final,
            "final_state": self.final,
        }

    def _shaped(self, rows: Any) -> Any:
        """``[T, S, H]`` to the captured layers, without a copy."""
        num_tokens, num_slots, width = rows.shape
        if self.aux == "stacked":
            return rows[:, : self.num_layers]
        return rows.reshape(num_tokens, num_slots * width)[:, : self.num_layers * width]


@cache
def has_torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def form_for(identity: RunIdentity, aux: str, final: str, norm: FinalNorm | None, pin_memory: bool) -> SampleForm:
    """The stored final state where it is the one asked for, else the pre-norm one and the norm to apply.

    Args:
        aux, final, pin_memory: as for ``eaglefeed.open``.
        norm: the run's own, None where it has none.

    Raises:
        UsageError: the run cannot give this form, and why.
        CorruptData: the norm is not as wide as the states.
    """
    stored, num_layers = identity.final_states, len(identity.layer_ids)
    if not {*stored} <= FINAL_STATES:
        raise UsageError(f"run {identity.run!r} holds no final state ({identity.final_state})")
    if final not in FINAL_STATES:
        raise UsageError(f'final={final!r}: "pre_norm" or "post_norm"')
    if final in stored:
        return SampleForm(aux, final, num_layers, num_layers + stored.index(final), None, pin_memory)
    return SampleForm(aux, final, num_layers, num_layers, _norm_for(identity, final, norm), pin_memory)


def _norm_for(identity: RunIdentity, final: str, norm: FinalNorm | None) -> FinalNorm:
    """The norm that makes the post-norm state of the stored one; raises UsageError when there is no way."""
    if final == "pre_norm":
        raise UsageError(
            f"run {identity.run!r} holds the final state after the norm, and a norm cannot be undone: "
            'open it with final="post_norm"'
        )
    if norm is None:
        raise UsageError(
            f"run {identity.run!r} has no final_norm.safetensors, so a post-norm final state cannot be computed; "
            'final="pre_norm" gives what is stored'
        )
    if len(norm.weight) != identity.hidden_size:
        raise CorruptData(
            f"run {identity.run!r}: its final norm is {len(norm.weight)} wide, its states {identity.hidden_size}"
        )
    return norm
