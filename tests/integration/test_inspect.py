"""`eaglefeed inspect` says what a shard and a run hold, on a directory and on S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eaglefeed.cli import main
from eaglefeed.stores import open_store
from tests.runs import make_run
from tests.services import BUCKET

LENGTHS = (5, 40, 300)


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = str(tmp_path / "store")
    if request.param == "s3":
        for name, value in request.getfixturevalue("seaweed").items():
            monkeypatch.setenv(name, value)
        made = f"s3://{BUCKET}/{tmp_path.name}"
    make_run(made, tmp_path, LENGTHS)
    return made


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["inspect", *arguments]) == 0
    return capsys.readouterr().out


def shard_of(url: str) -> str:
    return f"{url}/{next(iter(open_store(url).list('synthetic/shards/'))).key}"


def test_a_shard_names_its_run_and_samples(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Model, layers with their convention, tokens, sizes, and each sample with its place."""
    record = json.loads(inspect(capsys, shard_of(url), "--json"))
    assert (record["run"], record["layers"], record["layer_convention"]) == ("synthetic", [1, 5, 8], "output_of_layer")
    assert (record["samples"], record["tokens"], record["encoding"]) == (3, sum(LENGTHS), "lossless")
    assert [sample["shape"] for sample in record["listed"]] == [[length, 4, 64] for length in LENGTHS]
    assert record["ratio"] == round(record["raw_bytes"] / record["stored_bytes"], 4)
    page = inspect(capsys, shard_of(url))
    assert "output_of_layer" in page and record["listed"][0]["id"] in page


def test_a_sample_is_decoded_on_request(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A sample by the beginning of its id, each slot with its magnitude; the final state is the large one here."""
    listed = json.loads(inspect(capsys, shard_of(url), "--json"))["listed"]
    record = json.loads(inspect(capsys, shard_of(url), "--sample", listed[2]["id"][:8], "--json"))
    assert record["id"] == listed[2]["id"]
    assert [slot["slot"] for slot in record["slots"]] == [
        "output of layer 1", "output of layer 5", "output of layer 8", "final, before the norm",
    ]  # fmt: skip
    assert record["slots"][3]["rms"] > 5 * record["slots"][0]["rms"] > 0
    assert main(["inspect", shard_of(url), "--sample", "zz"]) == 2
    assert "is no sample id" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["", "/synthetic"])
def test_a_run_is_summed_up(url: str, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The store or the run's own folder: manifests, samples, lengths, sizes."""
    record = json.loads(inspect(capsys, url + where, "--json"))
    assert (record["run"], record["manifests"], record["samples"], record["rejected"]) == ("synthetic", 1, 3, 0)
    assert record["tokens_a_sample"]["max"] == 300
    assert "tokens a sample" in inspect(capsys, url + where)


def test_what_is_not_there_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 and the path."""
    assert main(["inspect", str(tmp_path / "no.safetensors")]) == 2
    assert main(["inspect", str(tmp_path / "nothing")]) == 2
    assert "no such file" in capsys.readouterr().err
