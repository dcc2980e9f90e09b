"""Reading a run from a real S3 server: the same samples, forked and spawned, cached and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import eaglefeed
from eaglefeed.cli import main
from eaglefeed.dataset import Dataset
from eaglefeed.errors import UsageError
from eaglefeed.manifest import shard_key
from eaglefeed.stores import open_store
from tests.runs import make_run
from tests.services import BUCKET

LENGTHS = [10, 33, 200, 5, 70, 128, 64, 300, 17, 90, 41, 250]


@pytest.fixture
def s3(seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A URL of this test's own below the bucket."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}"


def check_same(found: Dataset, wanted: Dataset) -> None:
    assert [found.sample_id(number) for number in range(len(found))] == [
        wanted.sample_id(number) for number in range(len(wanted))
    ]
    for number in range(len(wanted)):
        for name in ("token_ids", "loss_mask", "aux", "final"):
            assert torch.equal(found[number][name], wanted[number][name])


def test_s3_gives_what_a_directory_gives(s3: str, tmp_path: Path) -> None:
    """The same run in a directory and on S3 reads the same, whole and post-norm; the cache is filled on the way."""
    make_run(s3, tmp_path, LENGTHS)
    make_run(str(tmp_path / "store"), tmp_path, LENGTHS)
    there = eaglefeed.open(s3, final="post_norm", cache=tmp_path / "cache")
    check_same(there, eaglefeed.open(str(tmp_path / "store"), final="post_norm"))
    kept = list((tmp_path / "cache").glob("??/*"))
    assert len(kept) == len(LENGTHS)
    check_same(there, eaglefeed.open(f"{s3}/synthetic", final="post_norm"))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_open_their_own_connections(s3: str, tmp_path: Path, context: str) -> None:
    """After the parent has read from S3, two forked or spawned workers read everything, each sample once."""
    make_run(s3, tmp_path, LENGTHS)
    run = eaglefeed.open(s3)
    ids = [run[number]["sample_id"] for number in range(len(run))]
    loader: Any = DataLoader(
        run,  # type: ignore[arg-type]
        batch_size=5,
        num_workers=2,
        multiprocessing_context=context,
        collate_fn=list,
    )
    assert [sample["sample_id"] for batch in loader for sample in batch] == ids


def test_a_missing_shard_is_named(s3: str, tmp_path: Path) -> None:
    """A shard that is gone from the bucket is named before anything is read."""
    make_run(s3, tmp_path, LENGTHS)
    batch = eaglefeed.open(s3).index.batch_id(0)
    open_store(s3).delete(shard_key("synthetic", batch))
    with pytest.raises(UsageError, match=f"1 shards missing .{batch}"):
        eaglefeed.open(s3)
    assert len(eaglefeed.open(s3, allow_incomplete=True)) == len(LENGTHS) - 4


def test_an_export_from_s3(s3: str, tmp_path: Path) -> None:
    """``eaglefeed export`` streams from S3 as from a directory."""
    make_run(s3, tmp_path, LENGTHS)
    assert main(["export", s3, str(tmp_path / "out"), "--format", "modelopt", "--quiet"]) == 0
    assert len(list((tmp_path / "out").glob("*.pt"))) == len(LENGTHS)
