"""What a person reads: shown conversations, near duplicates, the plan's arithmetic, the summary's sentences."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from config.run import parse_run
from eaglefeed.cli import main as eaglefeed
from eaglefeed.identity import RunIdentity
from eaglefeed.records import Sample
from eaglefeed.stores import open_store
from producer.estimate import Prices, Volume, estimate, measured_ratio
from producer.near import NearDuplicates
from producer.rejects import RejectsFile
from producer.report import Pause
from producer.show import coloured_text
from producer.tokens import Prepared
from storage.ledger import read_manifests
from tests import chat_templates
from tests.runs import make_run


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    tokenizer = chat_templates.make_tokenizer("chatml")
    tokenizer.save_pretrained(folder / "model")
    config = {"num_hidden_layers": 8, "hidden_size": 64, "vocab_size": len(tokenizer), "model_type": "llama"}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    path = folder / "run.toml"
    path.write_text(
        f'name = "planned"\n[model]\npath = "{folder}/model"\n[store]\nurl = "{folder}/store"\n'
        f'[spool]\npath = "{folder}/spool"\n[data]\nbatch_tokens = 1000\n'
    )
    return path


def row_of(ids: list[int], line: int = 1) -> Prepared:
    tokens = np.asarray(ids, np.uint32)
    return Prepared("f", line, "", "tokenized", Sample(tokens, np.ones(len(ids), np.uint8)))


def test_near_duplicates_are_counted_to_the_token() -> None:
    """The longest prefix shared with any earlier conversation, as a radix cache over token ids would match it."""
    near = NearDuplicates(threshold=2)
    for line, ids in enumerate(
        ([1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 9, 9], [1, 2, 7], [8, 8, 8, 8], [1, 2, 3, 4, 5, 6], [1, 2, 3]), 1
    ):
        near.add(row_of(ids, line))
    # Shared: -, 3, 4, 2 (not more than 2), 0, 5, 3.
    summary = near.summary()
    assert (summary["conversations"], summary["tokens"]) == (4, 3 + 4 + 5 + 3)
    assert summary["compared_with_all"]


def test_near_duplicates_agree_with_comparing_every_pair() -> None:
    """The tree finds what looking at all earlier samples finds."""
    random = np.random.default_rng(3)
    rows = [random.integers(0, 3, random.integers(1, 12)).tolist() for _ in range(300)]
    near, total, count = NearDuplicates(threshold=3), 0, 0
    for number, ids in enumerate(rows):
        shared = max((_common(ids, other) for other in rows[:number]), default=0)
        if shared > 3:
            total, count = total + shared, count + 1
        near.add(row_of(ids, number))
    assert (near.conversations, near.tokens) == (count, total)


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_shown_conversations_mark_the_supervised_tokens() -> None:
    """Green on a terminal, in brackets elsewhere; escape sequences of the data are not obeyed."""
    tokenizer = chat_templates.make_tokenizer("chatml")
    ids = np.asarray(tokenizer("ask\x1b[31m", add_special_tokens=False)["input_ids"], np.uint32)
    answer = np.asarray(tokenizer("yes<|im_end|>", add_special_tokens=False)["input_ids"], np.uint32)
    mask = np.concatenate([np.zeros(len(ids), np.uint8), np.ones(len(answer), np.uint8)])
    sample = Sample(np.concatenate([ids, answer]), mask)
    assert coloured_text(tokenizer, sample, False) == "ask\\x1b[31m⟦yes<|im_end|>⟧"
    assert "\x1b[1;32myes<|im_end|>\x1b[0m" in coloured_text(tokenizer, sample, True)


def test_show_needs_neither_redis_nor_store(capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path) -> None:
    """--show prints N rows, rejected ones with their reason, and writes nothing."""
    data = tmp_path / "a.jsonl"
    data.write_text('{"prompt": "Hi", "response": "Yes."}\n{"prompt": "Hi"}\n{"prompt": "a", "response": "b"}\n')
    assert (
        eaglefeed(["produce", str(data), "--run", str(run_file), "--show", "2", "--redis", "redis://127.0.0.1:1"]) == 0
    )
    shown = capsys.readouterr().out
    assert "⟦Yes.<|im_end|>⟧" in shown and "line 1 ── pairs, " in shown
    assert "line 2 ── rejected, unknown-shape" in shown and "line 3" not in shown
    assert not (run_file.parent / "store").exists()


def identity(**changes: Any) -> RunIdentity:
    fields: dict[str, Any] = {
        "run": "r", "model": "m", "model_config_sha256": "", "tokenizer_sha256": "", "chat_template_sha256": "",
        "num_layers": 61, "hidden_size": 7168, "vocab_size": 1000, "layer_ids": (1, 29, 57), "dtype": "bfloat16",
        "max_length": 4096, "data_preparation": "", "engine": "", "plugin": "",
    }  # fmt: skip
    return RunIdentity(**(fields | changes))


def volume_of(lengths: list[int]) -> Volume:
    volume = Volume("r", 1000)
    for number, length in enumerate(lengths):
        volume.add(Sample(np.full(length, number, np.uint32), np.ones(length, np.uint8)))
    volume.finish()
    return volume


def test_the_plans_arithmetic() -> None:
    """Bytes per token are (K+1)·H·2; Kimi's 7168-wide states take 56 KiB a token."""
    settings = parse_run({"name": "r", "model": {"path": "m"}, "store": {"url": "s3://b/p"}}, "r.toml")
    prices = Prices(tokens_per_second=1000, gpu_hour=36, tb_month=20, gpus=2, months=3)
    figures = estimate(volume_of([100] * 36), settings, identity(), None, prices)
    assert figures.bytes_per_token == 56 * 1024
    assert figures.raw_bytes == 3600 * 57_344
    assert figures.stored_bytes == round(3600 * 57_344 / 1.49)
    assert figures.hours == pytest.approx(3600 / 2000 / 3600)
    assert figures.gpu_cost == pytest.approx(figures.hours * 2 * 36)
    assert figures.store_cost == pytest.approx(figures.stored_bytes / 1e12 * 20 * 3)
    assert figures.shards == 4
    # 138.5 MB in 4 shards of two 32 MiB parts: start, two parts, end, HEAD, manifest.
    assert figures.s3_requests == 4 * 6
    assert figures.redis_bytes > 36 * 72 + 4 * 1500
    assert figures.ratio_source.startswith("the usual figure")
    assert estimate(volume_of([100]), settings, identity(), 1.6, prices).ratio == 1.6


def test_the_plan_warns_where_spool_or_store_are_too_small(tmp_path: Path) -> None:
    """Terabytes nobody announced (SpecForge 426), and a spool that fills (Model-Optimizer 2080)."""
    record = {
        "name": "r",
        "model": {"path": "m"},
        "spool": {"path": str(tmp_path), "max_bytes": 10_000_000},
        "store": {"url": str(tmp_path)},
    }
    settings = parse_run(record, "r.toml")
    volume = volume_of([900])
    volume.tokens = 10**15
    warnings = estimate(volume, settings, identity(), None, Prices(tokens_per_second=1000)).warnings
    assert len(warnings) == 3
    assert "the batches under way at once take 147.7 MiB" in warnings[0]
    assert "the shards take" in warnings[1] and "the spool holds 0s of states" in warnings[2]


def test_the_ratio_is_measured_on_the_runs_own_shards(tmp_path: Path) -> None:
    """Raw by stored bytes of its manifests; nothing stored, nothing measured."""
    store = open_store(str(tmp_path / "store"))
    assert measured_ratio(store, "synthetic") is None
    make_run(str(tmp_path / "store"), tmp_path, [100, 200, 300, 400, 500])
    manifests = list(read_manifests(store, "synthetic"))
    raw, stored = sum(m.raw_bytes for m in manifests), sum(m.shard_bytes for m in manifests)
    assert measured_ratio(store, "synthetic") == raw / stored > 1


def test_plan_reads_the_data_and_enqueues_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path
) -> None:
    """Counts as produce counts, a histogram, and sizes; no Redis is asked."""
    rows = [{"prompt": f"Question {number % 20}?", "response": "Yes. " * (number % 20)} for number in range(1, 60)]
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert eaglefeed(["plan", str(data), "--run", str(run_file), "--json", "--quiet", "--jobs", "0"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["rows"] == 59 == plan["unique"] + plan["duplicate"] + sum(plan["rejected"].values())
    assert plan["unique"] == 19 == sum(row["samples"] for row in plan["lengths"])
    assert plan["raw_bytes"] == plan["tokens"] * 4 * 64 * 2
    assert eaglefeed(["plan", str(data), "--run", str(run_file), "--quiet", "--jobs", "0"]) == 0
    assert "not yet measured here" in capsys.readouterr().out


def test_a_pause_is_said_once_and_so_is_its_end() -> None:
    """Not at every look at the queue."""
    file = io.StringIO()
    pause = Pause(2, quiet=False, file=file)
    for waiting in (0, 1, 2, 2, 3, 1, 0):
        pause(waiting)
    lines = file.getvalue().split("\n")
    assert [line for line in lines if line] == [
        "eaglefeed: paused: 2 batches are queued and data.max_queued_batches is 2",
        "eaglefeed: went on after 0s",
    ]


def test_rejects_survive_anything_in_a_detail(tmp_path: Path) -> None:
    """Half a surrogate pair or a newline stays one line of ASCII JSON; a second file object adds no repeats."""
    rejected = Prepared("f\n", 3, "\ud800", "messages", None, "invalid-unicode", "bad \ud800 \n here")
    for _ in range(2):
        rejects = RejectsFile(tmp_path / "sub" / "rejects.jsonl")
        rejects.add(rejected)
        rejects.close()
    lines = (tmp_path / "sub" / "rejects.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["row_id"] == "\ud800"
