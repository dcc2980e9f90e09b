"""Presets and `eaglefeed init`: valid, true to their own comments, and asked in five questions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from config import init
from config.model_identity import default_layers
from config.run import load_run
from eaglefeed import cli
from eaglefeed.errors import UsageError

CONFIG = Path(init.__file__).parent
PRESETS = sorted(CONFIG.glob("*.toml"))
# Layers and width as the models' own config.json have them.
SHAPES = {
    "smollm2": (30, 576),
    "qwen3-8b": (36, 4096),
    "llama-3.1-8b": (32, 4096),
    "gpt-oss-120b": (36, 2880),
    "deepseek-v3": (61, 7168),
    "kimi-k2.5": (61, 7168),
}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_is_valid_and_its_bytes_per_token_are_right(path: Path) -> None:
    """It loads, one pass holds its longest sample, and the comment's bytes per token are (K + 1) * H * 2."""
    settings, text = load_run(path), path.read_text()
    num_layers, hidden_size = SHAPES[path.stem]
    layers = settings.model.layers or default_layers(num_layers)
    raw = (len(layers) + 1) * hidden_size * 2
    assert f"= {raw:,} before compression" in text
    stored = re.search(r"about ([\d,]+) after", text)
    assert stored is not None
    assert raw / int(stored[1].replace(",", "")) == pytest.approx(1.49, abs=0.02)
    forward = settings.engine.chunked_prefill_tokens or settings.engine.max_prefill_tokens
    assert settings.engine.chunked_prefill_tokens or forward >= settings.data.max_length
    assert settings.data.batch_tokens >= settings.data.max_length
    assert max(layers) < num_layers


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_presets_named_default_is_the_default(path: Path) -> None:
    """Where the comment shows the default layers, they are those the code takes."""
    shown = re.search(r"# layers = (\[[\d, ]+\])", path.read_text())
    if shown is None:
        assert load_run(path).model.layers is not None
    else:
        assert tuple(json.loads(shown[1])) == default_layers(SHAPES[path.stem][0])


def test_every_model_of_the_issue_has_a_preset() -> None:
    """SmolLM2, Qwen3-8B, Llama-3.1-8B, GPT-OSS-120B, DeepSeek-V3, Kimi-K2.5."""
    assert {path.stem for path in PRESETS} == set(SHAPES)


def test_kimi_captures_the_inputs_of_3_31_59() -> None:
    """Which are the outputs of 2, 30 and 58, on eight GPUs."""
    settings = load_run(CONFIG / "kimi-k2.5.toml")
    assert settings.model.layers == (2, 30, 58)
    assert settings.engine.tensor_parallel == 8
    assert settings.data.max_length >= 32_768


def test_init_writes_a_file_that_loads(tmp_path: Path) -> None:
    """With --yes nothing is asked; the model's width is read from its folder."""
    model = tmp_path / "My Model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 1024, "num_hidden_layers": 28}))
    path = tmp_path / "run.toml"
    arguments = ["init", "--yes", "--model", str(model), "--gpus", "4", "--store", 's3://b/"x"', "-o", str(path)]
    assert cli.main(arguments) == 0
    settings = load_run(path)
    assert (settings.name, settings.engine.tensor_parallel) == ("my-model", 4)
    assert settings.store.url == 's3://b/"x"'
    assert "= 8,192 before compression" in path.read_text()
    assert "layers = [1, 13, 24]" in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_init_asks_five_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal each question has a default; an empty answer takes it."""
    asked: list[str] = []
    answers = iter(["Qwen/Qwen3-8B", "8,192", "2", "s3://bucket/runs", ""])

    def answer(question: str) -> str:
        asked.append(question)
        return next(answers)

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    path = tmp_path / "run.toml"
    assert cli.main(["init", "-o", str(path)]) == 0
    assert len(asked) == 5
    settings = load_run(path)
    assert (settings.name, settings.data.max_length, settings.engine.tensor_parallel) == ("qwen3-8b", 8192, 2)


def test_init_neither_overwrites_nor_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file stays; without a terminal it says which option it lacks."""
    path = tmp_path / "run.toml"
    assert cli.main(["init", "-o", str(path)]) == 2
    assert "--model" in capsys.readouterr().err
    path.write_text("mine")
    assert cli.main(["init", "--preset", "smollm2", "-o", str(path)]) == 2
    assert path.read_text() == "mine"
    assert cli.main(["init", "--preset", "smollm2", "-o", str(path), "--yes"]) == 0
    assert load_run(path).name == "smollm2-demo"


def test_an_answer_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question is named."""
    answers = iter(["m", "many"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    parsed: Any = cli.verb_parser("init").parse_args(["-o", str(tmp_path / "x.toml")])
    with pytest.raises(UsageError, match="Longest sample"):
        init.ask(parsed)
