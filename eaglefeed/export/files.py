"""Files that appear whole or not at all: a temporary name, a sync, a rename."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def publish(path: Path, write: Callable[[Path], object]) -> int:
    """Let ``write`` make the file under a temporary name, then sync and rename it; returns its size in bytes.

    The temporary name ends in ``.part``, which no trainer's reader takes for a sample.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
            num_bytes = os.fstat(file.fileno()).st_size
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return num_bytes


def save_torch(folder: Path, name: str, record: Any) -> str:
    """``torch.save`` to ``folder/name``, published; returns ``name``."""
    import torch

    publish(folder / name, lambda path: torch.save(record, path))
    return name


def save_text(folder: Path, name: str, text: str) -> str:
    """Text to ``folder/name``, published; returns ``name``."""
    publish(folder / name, lambda path: path.write_text(text, "utf-8"))
    return name
