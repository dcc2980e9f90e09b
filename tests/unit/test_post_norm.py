"""``engine.store_post_norm``: one more slot in dumps and shards, announced by the run's identity, and never mixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import eaglefeed
from config.model_identity import run_identity
from config.run import parse_run
from eaglefeed.cli import main
from eaglefeed.dump import check_rows, read_dump, write_dump
from eaglefeed.errors import CorruptData, IdentityMismatch
from eaglefeed.identity import PRE_AND_POST_NORM, RunIdentity
from eaglefeed.manifest import norm_key, run_key, shard_key
from eaglefeed.records import Batch
from eaglefeed.shard import ShardReader, read_sample
from eaglefeed.shard_writer import write_shard
from eaglefeed.stores import open_store
from storage.ledger import ensure_run
from tests.runs import make_dump, make_identity, make_run, make_sample

WITHOUT, WITH = make_identity(), make_identity(final_state=PRE_AND_POST_NORM)
LENGTHS = (1, 7, 300, 40)
BATCH = Batch("synthetic", tuple(make_sample(number, length) for number, length in enumerate(LENGTHS)))
DUMPS = {
    identity.final_state: {sample.id: make_dump(identity, BATCH.id, sample) for sample in BATCH.samples}
    for identity in (WITHOUT, WITH)
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    make_run(str(folder / "store"), folder, LENGTHS, identity=WITH)
    return str(folder / "store")


def test_the_identity_has_a_slot_and_bytes_for_it() -> None:
    """K + 2 slots instead of K + 1, and run.json without it is what it was before the option existed."""
    assert (WITHOUT.num_slots, WITH.num_slots) == (4, 5)
    assert (WITHOUT.bytes_per_token, WITH.bytes_per_token) == (4 * 64 * 2, 5 * 64 * 2)
    assert (WITHOUT.final_states, WITH.final_states) == (("pre_norm",), ("pre_norm", "post_norm"))
    assert RunIdentity.from_json(WITH.to_json()) == WITH
    changed = {
        name for name, value in json.loads(WITH.to_json()).items() if json.loads(WITHOUT.to_json())[name] != value
    }
    assert changed == {"final_state"}


@pytest.mark.parametrize("is_on", [False, True])
def test_the_setting_makes_the_identity(tmp_path: Path, is_on: bool) -> None:
    """``engine.store_post_norm`` is in the run's identity, off by default."""
    config = {"num_hidden_layers": 12, "hidden_size": 64, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = {"store_post_norm": True} if is_on else {}
    settings = parse_run({"name": "r", "model": {"path": str(tmp_path)}, "engine": engine}, "r.toml")
    assert run_identity(settings).final_state == (PRE_AND_POST_NORM if is_on else "pre_norm")


def test_a_worker_without_it_is_refused(tmp_path: Path) -> None:
    """Whoever joins a run with the other setting is told which field differs, both ways."""
    store = open_store(str(tmp_path))
    for first, second in ((WITHOUT, WITH), (replace(WITH, run="other"), replace(WITHOUT, run="other"))):
        ensure_run(store, first)
        with pytest.raises(IdentityMismatch, match=f"final_state: '{first.final_state}' there"):
            ensure_run(store, second)


@pytest.mark.parametrize("identity", [WITHOUT, WITH], ids=["without", "with"])
def test_a_dump_returns(tmp_path: Path, identity: RunIdentity) -> None:
    """Every slot comes back, and the layers are named as ever."""
    dump = DUMPS[identity.final_state][BATCH.samples[2].id]
    write_dump(tmp_path / "x.dump", dump.header, dump.token_ids, dump.positions, dump.states)
    found = read_dump(tmp_path / "x.dump")
    assert check_rows(found)
    assert found.header == dump.header and found.header.layer_ids == (1, 5, 8)
    assert found.states.shape == (300, identity.num_slots, 64)
    assert np.array_equal(found.states, dump.states)


@pytest.mark.parametrize("encoding", ["lossless", "raw"])
@pytest.mark.parametrize("identity", [WITHOUT, WITH], ids=["without", "with"])
def test_a_shard_returns(tmp_path: Path, identity: RunIdentity, encoding: str) -> None:
    """Every slot of every sample, bit for bit; the slots that both runs have are the same."""
    path = tmp_path / "one.safetensors"
    written = write_shard(path, identity, BATCH, DUMPS[identity.final_state], encoding)
    reader = ShardReader.open(path)
    assert reader.identity == identity
    assert written.raw_bytes == sum(LENGTHS) * identity.bytes_per_token
    for stored in reader.samples:
        states = reader.read(stored, check_raw=True).states
        assert np.array_equal(states, DUMPS[identity.final_state][stored.id].states)
        assert np.array_equal(states[:, :4], DUMPS["pre_norm"][stored.id].states)


@pytest.mark.parametrize(("run", "other"), [(WITHOUT, WITH), (WITH, WITHOUT)], ids=["without", "with"])
def test_a_mix_is_refused(tmp_path: Path, run: RunIdentity, other: RunIdentity) -> None:
    """A dump of the other kind enters no shard, and a shard's sample of the other kind is not read."""
    with pytest.raises(CorruptData, match="the run and the sample say"):
        write_shard(tmp_path / "mixed", run, BATCH, {**DUMPS[run.final_state], **DUMPS[other.final_state]})
    written = write_shard(tmp_path / "whole", other, BATCH, DUMPS[other.final_state])
    sample = written.samples[1]
    with pytest.raises(CorruptData, match="and the run says"):
        read_sample((tmp_path / "whole").read_bytes()[sample.start : sample.end], sample, run)


def test_a_mixed_run_is_refused_by_the_reader(tmp_path: Path) -> None:
    """A run.json of the other kind over a run's shards: each sample is refused, none is read in the wrong slots."""
    make_run(str(tmp_path / "store"), tmp_path, LENGTHS, identity=WITH)
    (tmp_path / "store" / run_key("synthetic")).write_bytes(WITHOUT.to_json())
    with pytest.raises(CorruptData, match="and the run says"):
        eaglefeed.open(str(tmp_path / "store"))[0]


@pytest.mark.parametrize("with_torch", [True, False], ids=["torch", "numpy"])
def test_post_norm_is_what_is_stored(tmp_path: Path, with_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre- and post-norm are each their own slot, in any form of aux; the run's norm is not needed, nor read."""
    monkeypatch.setattr("eaglefeed.form.has_torch", lambda: with_torch)
    make_run(str(tmp_path / "store"), tmp_path, LENGTHS, identity=WITH)
    (tmp_path / "store" / norm_key("synthetic")).unlink()
    run = eaglefeed.open(str(tmp_path / "store"))
    assert run.form.final == "pre_norm"
    post = eaglefeed.open(str(tmp_path / "store"), aux="stacked", final="post_norm")
    for number in range(len(run)):
        bits = torch.from_numpy(DUMPS[PRE_AND_POST_NORM][run.sample_id(number)].states.view(np.int16))
        states = bits.view(torch.bfloat16).float()
        before, after = run[number], post[number]
        assert (before["final_state"], after["final_state"]) == ("pre_norm", "post_norm")
        assert np.array_equal(widened(before["final"]), states[:, 3])
        assert np.array_equal(widened(after["final"]), states[:, 4])
        assert np.array_equal(widened(after["aux"]), states[:, :3])
        assert np.array_equal(widened(before["aux"]), states[:, :3].flatten(1))
        assert np.array_equal(widened(post.with_form()[number]["final"]), states[:, 3])


def widened(states: object) -> np.ndarray:
    return states.float().numpy() if isinstance(states, torch.Tensor) else np.asarray(states)


def test_inspect_names_both_final_states(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The run says what it holds, and a sample's slots are named in their order."""
    assert main(["inspect", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["final_state"] == PRE_AND_POST_NORM
    shard = next(iter(Path(url, "synthetic/shards").iterdir()))
    assert shard.name == Path(shard_key("synthetic", BATCH.id)).name
    assert main(["inspect", str(shard), "--sample", BATCH.samples[2].id, "--json"]) == 0
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert [slot["slot"] for slot in slots[3:]] == ["final, before the norm", "final, after the norm"]
    assert slots[3]["rms"] > 10 > slots[4]["rms"] > 0.5
