"""transformers as the judge: the same checkpoint, the same token ids, each layer's output.

Legend: ``T`` tokens, ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from config.native_exit import keep_native_data
from eaglefeed.identity import RunIdentity
from eaglefeed.records import Sample

_MEMORY_SHARE = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceStates:
    """float32 tensors: ``slots`` ``[T, K+1, H]``, the last one the state before the norm; ``post_norm`` ``[T, H]``."""

    slots: Any
    post_norm: Any


def reference_states(
    folder: Path, identity: RunIdentity, samples: list[Sample], dtype: str, trust_remote_code: bool = False
) -> list[ReferenceStates]:
    """Run transformers over the samples, one a forward, in ``dtype``."""
    import torch

    model = _load(folder, getattr(torch, dtype), trust_remote_code).eval()
    kept: dict[str, Any] = {}
    hook = _final_norm(model).register_forward_hook(lambda _, inputs, output: kept.update(pre=inputs[0], post=output))
    try:
        return [_states_of(model, sample, identity, kept) for sample in samples]
    finally:
        hook.remove()
        del model
        gc.collect()


def does_fit(folder: Path, dtype: str) -> bool:
    """Whether the checkpoint's weights in ``dtype`` leave room in this machine's memory."""
    import psutil

    on_disk = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    needed = on_disk * (2 if dtype == "float32" else 1)
    return bool(needed < _MEMORY_SHARE * psutil.virtual_memory().available)


def is_mixture_of_experts(folder: Path) -> bool:
    """Whether the model routes tokens to experts: a token's routing can flip on the last bit."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    text = config.get("text_config") or config
    return any(text.get(name) for name in ("num_experts", "n_routed_experts", "num_local_experts"))


def _states_of(model: Any, sample: Sample, identity: RunIdentity, kept: dict[str, Any]) -> ReferenceStates:
    import torch

    token_ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
    with torch.inference_mode():
        output = model(input_ids=token_ids, output_hidden_states=True, use_cache=False)
    pre, post = kept["pre"][0].float(), kept["post"][0].float()
    # Entry k of transformers' list is the input of layer k; its last entry is after the final norm, so it is not used.
    outputs = [*(state[0].float() for state in output.hidden_states[:-1]), pre]
    slots = torch.stack([*(outputs[layer + 1] for layer in identity.layer_ids), pre], dim=1)
    return ReferenceStates(slots, post)


def _load(folder: Path, dtype: Any, trust_remote_code: bool) -> Any:
    keep_native_data()
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config.get("model_type") == "kimi_k25":
        return _load_kimi(folder, config["text_config"], dtype)
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=dtype, trust_remote_code=trust_remote_code)


def _load_kimi(folder: Path, text_config: dict[str, Any], dtype: Any) -> Any:
    """Kimi-K2.5's text model is DeepSeek-V3 with its weights under ``language_model.``."""
    from safetensors.torch import load_file
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    prefix = "language_model."
    config = DeepseekV3Config(**{name: value for name, value in text_config.items() if name != "rope_scaling"})
    weights: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= {name.removeprefix(prefix): tensor for name, tensor in load_file(path).items() if prefix in name}
    return DeepseekV3ForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype)


def _final_norm(model: Any) -> Any:
    """The norm behind the last decoder layer."""
    stack = model.model
    while not hasattr(stack, "layers"):
        stack = stack.language_model
    return stack.norm
