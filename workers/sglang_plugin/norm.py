"""The model's final norm, recorded once per run, so that the post-norm state can be computed from the stored one."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.runtime_context import get_parallel

from workers.sglang_plugin.settings import plugin_settings

FILE_NAME = "final_norm.safetensors"
_NAMES = ("norm", "final_layernorm", "ln_f", "final_norm")


def find_norm(stack: Any) -> Any:
    """The module that normalizes the last residual, or None."""
    return next((getattr(stack, name) for name in _NAMES if hasattr(stack, name)), None)


def kind_of(module: Any) -> str:
    """``rms`` (x·w), ``gemma_rms`` (x·(1+w)) or ``layer``, by the class that SGLang uses."""
    name = type(module).__name__.lower()
    if "rms" in name:
        return "gemma_rms" if "gemma" in name and not _is_plain_gemma(module) else "rms"
    return "layer" if "layernorm" in name else type(module).__name__


def record(model: Any, module: Any) -> None:
    """Write ``final_norm.safetensors`` into the run's spool folder, under a temporary name first (rank 0 only)."""
    if not is_writer():
        return
    from safetensors.torch import save_file

    path = plugin_settings().folder / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    metadata = {"eps": repr(epsilon_of(module)), "kind": kind_of(module), "lm_head_dtype": lm_head_dtype(model)}
    tensors = {name: getattr(module, name) for name in ("weight", "bias") if getattr(module, name, None) is not None}
    save_file(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, temporary, metadata
    )
    temporary.rename(path)


def epsilon_of(module: Any) -> float:
    """The norm's epsilon, under whichever name its class keeps it."""
    for name in ("variance_epsilon", "eps", "epsilon"):
        if hasattr(module, name):
            return float(getattr(module, name))
    raise AttributeError(f"{type(module).__name__} has no epsilon")


def lm_head_dtype(model: Any) -> str:
    """The dtype of the output projection's weight, "" where the model has none."""
    for owner in (model, getattr(model, "language_model", None)):
        weight = getattr(getattr(owner, "lm_head", None), "weight", None)
        if weight is not None:
            return str(weight.dtype).removeprefix("torch.")
    return ""


def is_writer() -> bool:
    """Whether this process copies and writes: attention-TP rank 0 of its replica alone (TorchSpec 122)."""
    return bool(get_parallel().attn_tp_rank == 0)


def _is_plain_gemma(module: Any) -> bool:
    """Gemma-4's norm keeps its weight as it multiplies."""
    return "gemma4" in type(module).__name__.lower()
