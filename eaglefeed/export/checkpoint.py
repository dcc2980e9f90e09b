"""Single tensors of a checkpoint on disk: embedding, head, final norm, whatever the architecture calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eaglefeed.errors import UsageError

_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "wte.weight", "word_embeddings.weight")
_HEAD = ("lm_head.weight", "output.weight", "embed_out.weight")


def read_embeddings(folder: Path) -> Any:
    """The input embedding ``[V, H]`` in the checkpoint's dtype; raises UsageError when there is none to be found."""
    return _read(folder, _EMBEDDINGS, "input embedding")


def read_head(folder: Path) -> Any:
    """The output head ``[V, H]``, the input embedding where the two are tied."""
    tensors = _tensor_files(folder)
    if not any(name.endswith(_HEAD) for name in tensors):
        return read_embeddings(folder)
    return _read(folder, _HEAD, "lm_head")


def find_tensor(folder: Path, suffixes: tuple[str, ...]) -> Any | None:
    """The tensor whose name ends in one of ``suffixes``, the shortest name of several; None where there is none."""
    from safetensors import safe_open

    tensors = _tensor_files(folder)
    names = sorted((name for name in tensors if name.endswith(suffixes)), key=len)
    if not names:
        return None
    with safe_open(tensors[names[0]], framework="pt") as file:
        return file.get_tensor(names[0])


def _read(folder: Path, suffixes: tuple[str, ...], what: str) -> Any:
    found = find_tensor(folder, suffixes)
    if found is None:
        raise UsageError(f"{folder}: no tensor whose name ends in {' or '.join(suffixes)}, so no {what}")
    return found


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    from safetensors import safe_open

    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if indexes:
        names: dict[str, str] = json.loads(indexes[0].read_text("utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.update({name: path for name in file.keys()})  # noqa: SIM118  # not a dict
    if not found:
        raise UsageError(f"{folder}: no safetensors checkpoint there")
    return found
