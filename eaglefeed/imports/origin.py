"""The identity of a run made of another system's dumps: what the checkpoint says, and what the dumps themselves are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglefeed.errors import UsageError
from eaglefeed.identity import RunIdentity

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class DumpKind:
    """What the dumps of a folder have in common."""

    format: str
    num_layers: int
    hidden_size: int
    dtype: str
    final_state: str
    max_length: int


def make_identity(run: str, model: Path, layers: Sequence[int] | None, kind: DumpKind) -> RunIdentity:
    """The identity under which the dumps are stored.

    Args:
        layers: ``output_of_layer`` numbers; None takes what every trainer captures by default, ``1, n//2-1, n-4``.

    Raises:
        UsageError: the checkpoint and the dumps disagree; the message has both numbers.
    """
    config = _read_config(model)
    text = config.get("text_config") or config
    depth, width = int(text["num_hidden_layers"]), int(text["hidden_size"])
    layer_ids = tuple(sorted(layers or {1, depth // 2 - 1, depth - 4}))
    if width != kind.hidden_size:
        raise UsageError(f"{model} is {width} wide and the dumps {kind.hidden_size}: they are of another model")
    if len(layer_ids) != kind.num_layers:
        raise UsageError(
            f"the dumps hold {kind.num_layers} captured layers and {list(layer_ids)} names {len(layer_ids)}: "
            "say which with --layers"
        )
    return RunIdentity(
        run=run,
        model=model.name,
        model_config_sha256=_sha256(json.dumps(config, sort_keys=True).encode()),
        tokenizer_sha256=_sha256(*(path.read_bytes() for path in _present(model, _TOKENIZER_FILES))),
        chat_template_sha256=_sha256(*(path.read_bytes() for path in _present(model, ("chat_template.jinja",)))),
        num_layers=depth,
        hidden_size=width,
        vocab_size=int(text["vocab_size"]),
        layer_ids=layer_ids,
        dtype=kind.dtype,
        max_length=kind.max_length,
        data_preparation=f"imported from {kind.format}",
        engine=f"unknown, by {kind.format}",
        plugin="",
        final_state=kind.final_state,
    )


def read_final_norm(model: Path) -> bytes | None:
    """The checkpoint's final norm as ``final_norm.safetensors``, None where it has none of a known name."""
    from safetensors.torch import save

    from eaglefeed.export.checkpoint import find_tensor

    weight = find_tensor(model, ("model.norm.weight", "final_layernorm.weight", "ln_f.weight"))
    config = _read_config(model)
    text = config.get("text_config") or config
    if weight is None or "rms_norm_eps" not in text:
        return None
    kind = "gemma_rms" if str(text.get("model_type", "")).startswith("gemma") else "rms"
    metadata = {"eps": repr(float(text["rms_norm_eps"])), "kind": kind, "lm_head_dtype": ""}
    data: bytes = save({"weight": weight.contiguous()}, metadata)
    return data


def _read_config(model: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((model / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {model}: no config.json of a checkpoint there ({error})") from error
    return config


def _present(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in names if (folder / name).exists()]


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
