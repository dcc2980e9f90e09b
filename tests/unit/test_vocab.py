"""`eaglefeed vocab` counts every stored sample and writes what the trainers load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from eaglefeed.cli import main as eaglefeed
from eaglefeed.stores import open_store
from tests.runs import make_identity, make_sample, write_batch


def write_run(folder: Path, batches: list[list[int]]) -> None:
    """Batches of samples with the given numbers; later calls add to what is stored."""
    store, identity = open_store(str(folder / "store")), make_identity("counted")
    store.create("counted/run.json", identity.to_json())
    for numbers in batches:
        write_batch(store, identity, [make_sample(number, 30 + number) for number in numbers], folder)


def vocab(folder: Path, *extra: str) -> int:
    run_file = folder / "run.toml"
    run_file.write_text(f'name = "counted"\n[model]\npath = "m"\n[store]\nurl = "{folder}/store"\n')
    return eaglefeed(["vocab", "--run", str(run_file), "--quiet", *extra])


def test_counts_over_all_stored_samples(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also those that an earlier command stored (AngelSlim counts only the newly made), by the loss mask."""
    write_run(tmp_path, [[1, 2, 3]])
    assert vocab(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3
    write_run(tmp_path, [[4, 5]])
    assert vocab(tmp_path, "--draft-vocab", "16", "--out", str(tmp_path / "out"), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    expected = np.zeros(make_identity().vocab_size, np.int64)
    for number in range(1, 6):
        sample = make_sample(number, 30 + number)
        expected += np.bincount(sample.token_ids[sample.loss_mask == 1], minlength=len(expected))
    assert (summary["samples"], summary["supervised_tokens"]) == (5, expected.sum())
    frequencies = torch.load(tmp_path / "out" / "token_freq.pt", weights_only=True)
    assert frequencies == {token: int(count) for token, count in enumerate(expected) if count}
    assert 0 < summary["coverage"] < 1


def test_the_mapping_in_the_trainers_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """d2t are offsets, int64; t2d is a bool per target token; both name the same most frequent tokens."""
    write_run(tmp_path, [[1, 2, 3]])
    assert vocab(tmp_path, "--draft-vocab", "16", "--out", str(tmp_path / "out")) == 0
    assert "a draft vocabulary of 16 covers" in capsys.readouterr().out
    mapping = torch.load(tmp_path / "out" / "vocab_mapping.pt", weights_only=True)
    d2t, t2d = mapping["d2t"], mapping["t2d"]
    assert (d2t.dtype, d2t.shape, t2d.dtype, len(t2d)) == (
        torch.int64,
        (16,),
        torch.bool,
        make_identity().vocab_size,
    )
    chosen = (torch.arange(16) + d2t).tolist()
    assert chosen == torch.nonzero(t2d).flatten().tolist() == sorted(chosen)
    frequencies = torch.load(tmp_path / "out" / "token_freq.pt", weights_only=True)
    assert min(frequencies[token] for token in chosen) >= max(
        count for token, count in frequencies.items() if token not in chosen
    )
    assert np.array_equal(np.load(tmp_path / "out" / "d2t.npy"), d2t.numpy())
    assert np.array_equal(np.load(tmp_path / "out" / "t2d.npy"), t2d.numpy())
    assert json.loads((tmp_path / "out" / "selected_token_ids.json").read_text()) == chosen


def test_an_empty_run_is_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nothing stored, nothing counted."""
    write_run(tmp_path, [])
    assert vocab(tmp_path) == 2
    assert "no stored sample yet" in capsys.readouterr().err
