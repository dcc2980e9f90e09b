"""What one forward leaves: rows of states beside the token ids and positions that the forward itself ran.

Legend: ``N`` tokens of the forward, ``S`` slots (K captured layers, one or two final states), ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from workers.sglang_plugin import faults
from workers.sglang_plugin.norm import is_writer
from workers.sglang_plugin.plan import plan_capture
from workers.sglang_plugin.rid import is_ours
from workers.sglang_plugin.settings import plugin_settings

_BITS = {2: torch.int16, 4: torch.int32}


@dataclass(eq=False, slots=True)
class Rows:
    """All rows of one forward, in host memory or on their way to it.

    Attributes:
        states: ``[N, S*H]``, the captured layers ascending, then the final state before the norm and, where the run
            stores it, the one after.
        token_ids, positions: int64 ``[N]``, the forward's own.
        copied: event that marks the end of the copy from the device, None on a CPU.
        source: keeps the device tensor alive until then.
    """

    states: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    copied: Any = None
    source: Any = None

    def part(self, start: int, end: int) -> tuple[Any, Any, Any]:
        """Token ids uint32, positions uint32 and state bit patterns of rows ``start:end``, as numpy views."""
        if self.copied is not None:
            self.copied.synchronize()
            self.source = None
        states = self.states[start:end]
        bits = states.view(_BITS[states.element_size()]).numpy()
        unsigned = bits.view(np.uint16 if states.element_size() == 2 else np.uint32)
        return (
            self.token_ids[start:end].numpy().astype(np.uint32),
            self.positions[start:end].numpy().astype(np.uint32),
            unsigned.reshape(len(bits), plugin_settings().num_slots, -1),
        )

    @property
    def row_bytes(self) -> int:
        return int(self.states.shape[1] * self.states.element_size())


@dataclass(eq=False, slots=True)
class Forward:
    """The forward that is running in this process: its scheduler thread runs one at a time."""

    final: Any = None
    states: Any = None
    inputs: list[Any] = field(default_factory=list)


_forward = Forward()
_copy_stream: Any = None


def final_norm(
    original: Callable[..., Any], hidden_states: Any, forward_batch: Any, layernorm: Any, *a: Any, **k: Any
) -> Any:
    """Hook: keep the residual that goes into the final norm."""
    asked = k.pop("capture", None) if "capture" in k else (a[0] if a else None)

    def capture(residual: Any, *args: Any, **kwargs: Any) -> None:
        _forward.final = residual
        if asked is not None:
            asked(residual, *args, **kwargs)

    return original(hidden_states, forward_batch, layernorm, capture, *a[1:], **k)


def keep_norm_input(module: Any, inputs: Any, output: Any) -> None:
    """Forward hook on the final norm module, for model files that call it themselves (Gemma-3)."""
    has_residual = isinstance(output, tuple) and output[1] is not None
    _forward.final = output[1] if has_residual else inputs[0]


def keep_layer_input(module: Any, args: Any, kwargs: Any) -> None:
    """Forward pre-hook on a decoder layer whose model file leaves the residual out of its own capture."""
    hidden_states, residual = kwargs["hidden_states"], kwargs.get("residual")
    _forward.inputs.append(hidden_states.clone() if residual is None else hidden_states + residual)


def logits_forward(original: Callable[..., Any], processor: Any, input_ids: Any, *a: Any, **k: Any) -> Any:
    """Hook: attach the forward's rows to its output."""
    batch: Any = k.get("logits_metadata", a[2] if len(a) > 2 else None)
    _forward.states = None
    faults.die_of_poison(batch)
    try:
        output = original(processor, input_ids, *a, **k)
        if _forward.states is not None:
            # A vision-language model embeds the tokens itself and hands its text model None.
            token_ids = batch.input_ids if input_ids is None else input_ids
            output.eaglefeed = _to_host(_forward.states, token_ids, batch.positions)
            if all(is_ours(rid) for rid in getattr(batch, "rids", None) or ()):
                # Nothing is left for SGLang's own path to copy: it only asks whether there are states.
                output.hidden_states = _forward.states[:0]
        return output
    finally:
        _forward.final = _forward.states = None
        _forward.inputs.clear()


def states_to_store(original: Callable[..., Any], processor: Any, *a: Any, **k: Any) -> Any:
    """Hook: one ``[N, S*H]`` tensor of all slots, instead of SGLang's ``[N, K*H]``."""
    names = ("hidden_states", "hidden_states_before_norm", "aux_hidden_states", "", "", "", "", "logits_metadata")
    given = {**dict(zip(names, a, strict=False)), **k}
    mode = given["logits_metadata"].capture_hidden_mode
    aux = given["aux_hidden_states"]
    if not mode.need_capture() or not mode.is_full() or aux is None:
        return original(processor, *a, **k)
    if not is_writer():
        # Every rank holds the same states after the all-reduce; only rank 0 copies and writes.
        return None
    if _forward.final is None:
        raise RuntimeError(f"eaglefeed: the model behind {type(processor).__name__} shows no state before its norm")
    settings = plugin_settings()
    plan = plan_capture(settings.layer_ids, settings.num_layers)
    after_norm = given["hidden_states"]  # the very tensor whose last rows go through the lm_head
    final = after_norm if faults.stores_post_norm() else _forward.final
    captured = aux.split(final.shape[-1], dim=-1) if isinstance(aux, torch.Tensor) else aux
    captured = _forward.inputs or captured
    slots = [final if slot is None else captured[slot] for slot in plan.slots]
    slots += [after_norm] if settings.store_post_norm else []
    _forward.states = torch.cat(slots, dim=-1)
    return _forward.states[:, : len(settings.layer_ids) * final.shape[-1]]


def _to_host(states: Any, input_ids: Any, positions: Any) -> Rows:
    if not states.is_cuda:
        return Rows(states, input_ids.clone(), positions.clone())
    return _copy_on_own_stream(states, input_ids, positions)


def _copy_on_own_stream(states: Any, input_ids: Any, positions: Any) -> Rows:
    """Start the copies into pinned memory behind this forward, without stopping the next one."""
    global _copy_stream
    if _copy_stream is None:
        _copy_stream = torch.cuda.Stream()
    # Ids and positions lie in buffers that the next forward fills again, so they are copied in its own order.
    source = (states, input_ids.clone(), positions.clone())
    _copy_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_copy_stream):
        host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in source]
        copied = torch.cuda.Event()
        copied.record(_copy_stream)
    return Rows(host[0], host[1], host[2], copied, source)
