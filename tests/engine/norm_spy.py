"""What an engine's final norm returned and what went through its lm_head, kept by SGLang's own ``--forward-hooks``.

It knows nothing of eaglefeed's hooks, so that it can judge them.
Legend: ``N`` tokens of a forward, ``B`` requests of it, ``H`` hidden width.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_SUFFIX = ".safetensors"


def engine_arguments(folder: Path) -> tuple[str, ...]:
    """SGLang's arguments for an engine that is spied on; each of its forwards leaves a file in ``folder``."""
    hook = {
        "name": "norm-spy",
        "target_modules": ["model.norm"],
        "hook_factory": f"{__name__}:make_hook",
        "config": {"folder": str(folder)},
    }
    return ("--forward-hooks", json.dumps([hook]))


def take_seen(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Of each forward since the last call, in order: ``after_norm`` ``[N, H]`` and ``through_head`` ``[B, H]``."""
    paths = sorted(folder.glob(f"*{_SUFFIX}"))
    seen = [load_file(path) for path in paths]
    for path in paths:
        path.unlink()
    return seen


def make_hook(config: dict[str, str]) -> Callable[..., None]:
    """Called by SGLang once the model is loaded; the hook is the norm's, the head's input is taken where it goes in."""
    from sglang.srt.layers.logits_processor import LogitsProcessor

    folder, numbers, seen = Path(config["folder"]), itertools.count(), {}
    compute = LogitsProcessor._compute_lm_head

    def compute_lm_head(processor: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tensors = {**seen, "through_head": hidden_states.clone()}
        temporary = folder / f"{next(numbers):06d}.part"
        save_file(tensors, temporary)
        temporary.rename(temporary.with_suffix(_SUFFIX))
        return compute(processor, hidden_states, *args, **kwargs)

    def keep(module: Any, inputs: Any, output: Any) -> None:
        seen["after_norm"] = (output[0] if isinstance(output, tuple) else output).clone()

    LogitsProcessor._compute_lm_head = compute_lm_head
    return keep
