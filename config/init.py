"""Asks five questions and writes a commented run file; with --yes it asks nothing.

The questions: which model, how long a conversation may be, how many GPUs, where shards go, what the run is called.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from config.model_identity import default_layers
from config.run import parse_run
from eaglefeed.errors import UsageError
from eaglefeed.progress import byte_size

PRESETS = Path(__file__).parent
DUMPED_FORWARD_TOKENS = 16_384
EXAMPLE = """examples:
  eaglefeed init                                     five questions, then run.toml
  eaglefeed init --model Qwen/Qwen3-8B --gpus 1 --yes -o qwen.toml
  eaglefeed init --preset kimi-k2.5 -o kimi.toml     a copy of config/kimi-k2.5.toml
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """The five answers, and the width of the model where its config could be read."""

    model: str
    max_length: int
    gpus: int
    store: str
    name: str
    hidden_size: int | None = None
    num_layers: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, default=Path("run.toml"), metavar="FILE", help="default run.toml")
    parser.add_argument("--preset", choices=preset_names(), help="copy one of config/*.toml instead of asking")
    parser.add_argument("--model", help="checkpoint folder or hub name")
    parser.add_argument("--max-length", type=int, metavar="TOKENS", help="longest sample; default 4096")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of one engine (tensor parallel); 0 is the CPU")
    parser.add_argument("--store", metavar="URL|DIR", help="s3://bucket/prefix or a folder; default .eaglefeed/store")
    parser.add_argument("--name", help="the run's name; default from the model")
    parser.add_argument("--yes", action="store_true", help="ask nothing, and overwrite the file")
    parser.add_argument("--quiet", action="store_true", help="do not say what comes next")


def main(parsed: argparse.Namespace) -> int:
    if parsed.output.exists() and not parsed.yes:
        raise UsageError(f"{parsed.output} exists. Choose another -o FILE, or --yes to overwrite it")
    text = preset_text(parsed.preset) if parsed.preset else run_file_text(ask(parsed))
    settings = parse_run(tomllib.loads(text), str(parsed.output))
    write_whole(parsed.output, text)
    if not parsed.quiet:
        print(f"{parsed.output}: run {settings.name!r}", file=sys.stderr)
        print(f"next: eaglefeed doctor --run {parsed.output}", file=sys.stderr)
    return 0


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def preset_text(name: str) -> str:
    return (PRESETS / f"{name}.toml").read_text("utf-8")


def ask(parsed: argparse.Namespace) -> Answers:
    """Each question that no option answers; its default with --yes.

    Raises UsageError when there is nobody to ask, or an answer is no number.
    """
    model = _answer(parsed, "model", "1/5  Model: checkpoint folder or hub name", "Qwen/Qwen3-8B")
    config = read_config(model)
    longest = int(config.get("max_position_embeddings") or 131_072)
    max_length = _number(parsed, "max_length", "2/5  Longest sample, in tokens", min(4096, longest))
    gpus = _number(parsed, "gpus", "3/5  GPUs of one engine (0: this machine's CPU)", _count_gpus())
    store = _answer(parsed, "store", "4/5  Where shards go: s3://bucket/prefix or a folder", ".eaglefeed/store")
    name = _answer(parsed, "name", "5/5  Name of the run", _plain(Path(model).name))
    return Answers(model, max_length, gpus, store, name, config.get("hidden_size"), config.get("num_hidden_layers"))


def read_config(model: str) -> dict[str, Any]:
    """The text model's config where the checkpoint lies on this disk, else nothing."""
    path = Path(model).expanduser() / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    text = config.get("text_config") or config
    return text if isinstance(text, dict) else {}


def run_file_text(answers: Answers) -> str:
    """The run file, with the reason beside each number."""
    forward = max(answers.max_length, DUMPED_FORWARD_TOKENS if answers.gpus else 4096)
    batch = max(answers.max_length, 32_768 if answers.gpus else 8192)
    device = "cuda" if answers.gpus else "cpu"
    lines = [
        *_head(answers),
        f"name = {_quoted(answers.name)}",
        "",
        "[model]",
        f"path = {_quoted(answers.model)}",
        *_layers(answers),
        "",
        "[data]",
        f"max_length = {answers.max_length}",
        f"batch_tokens = {batch}    # one batch becomes one shard",
        "",
        "[engine]",
        f"device = {_quoted(device)}",
        f"tensor_parallel = {max(1, answers.gpus)}",
        f"max_prefill_tokens = {forward}    # one pass holds the longest sample whole",
        *(["memory_fraction = 0.8    # leaves room for the states beside weights and KV pool"] if answers.gpus else []),
        "",
        "[spool]",
        'path = ".eaglefeed/spool"    # this node\'s own disk, never a network mount',
        f"max_bytes = {(200 if answers.gpus else 4) << 30}",
        "",
        "[store]",
        f"url = {_quoted(answers.store)}    # or EAGLEFEED_STORE; credentials from AWS's own chain",
    ]
    return "\n".join(lines) + "\n"


def _head(answers: Answers) -> list[str]:
    lines = [f"# {Path(answers.model).name}: written by `eaglefeed init`; docs/operations.md explains every key."]
    if answers.hidden_size:
        raw = 4 * answers.hidden_size * 2
        lines.append(
            f"# Bytes per token: (3 layers + the final state) * {answers.hidden_size} * 2 = {raw:,} "
            f"before compression, about {raw / 1.49:,.0f} after."
        )
        lines.append(f"# A million tokens: {byte_size(raw * 1e6)} raw, about {byte_size(raw * 1e6 / 1.49)} stored.")
    return lines


def _layers(answers: Answers) -> list[str]:
    if not answers.num_layers:
        return ['# layers: [1, n//2-1, n-4] by default, "output of decoder layer k"']
    chosen = list(default_layers(answers.num_layers))
    return [f'# layers = {chosen}: the default, "output of decoder layer k", n = {answers.num_layers}']


def write_whole(path: Path, text: str) -> None:
    """The file appears complete or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _answer(parsed: argparse.Namespace, option: str, question: str, default: str) -> str:
    given = getattr(parsed, option)
    if given is not None or parsed.yes:
        return str(default if given is None else given)
    if not sys.stdin.isatty():
        raise UsageError(f"nobody to ask for --{option.replace('_', '-')}: give it, or --yes for the defaults")
    return input(f"{question} [{default}]: ").strip() or default


def _number(parsed: argparse.Namespace, option: str, question: str, default: int) -> int:
    answer = _answer(parsed, option, question, str(default))
    try:
        return int(answer.replace(",", "").replace("_", ""))
    except ValueError as error:
        raise UsageError(f"{answer!r} is no whole number ({question.split('  ')[1]})") from error


def _count_gpus() -> int:
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))


def _plain(name: str) -> str:
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name.lower())
    return plain.strip("._-")[:64] or "run"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
