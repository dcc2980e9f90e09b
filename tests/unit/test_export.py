"""Exports: what each format describes, bit for bit, resumed without loss, and refused with the reason."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import eaglefeed
from eaglefeed.cli import main
from eaglefeed.dataset import Dataset
from eaglefeed.errors import CorruptData, IdentityMismatch, UsageError
from eaglefeed.export.command import FORMATS, make_exporter
from eaglefeed.export.exporter import ExportOptions
from eaglefeed.export.job import ExportCount, export
from eaglefeed.manifest import norm_key
from eaglefeed.stores import open_store
from tests.runs import VOCABULARY, make_identity, make_run

LENGTHS = [40, 33, 120, 5, 70, 128, 64, 99, 17]
HIDDEN = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(str(folder / "store"), folder, LENGTHS)
    torch.manual_seed(0)
    (folder / "model").mkdir()
    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN).to(torch.bfloat16),
        "lm_head.weight": torch.randn(VOCABULARY, HIDDEN).to(torch.bfloat16),
    }
    save_file(weights, folder / "model" / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def pre(folder: Path) -> Dataset:
    return eaglefeed.open(str(folder / "store"))


@pytest.fixture(scope="module")
def post(folder: Path) -> Dataset:
    return eaglefeed.open(str(folder / "store"), final="post_norm")


def run_export(name: str, dataset: Dataset, to: Path, **options: Any) -> ExportCount:
    return export(make_exporter(name, dataset, ExportOptions(quiet=True, **options)), to, quiet=True)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


def test_specforge(pre: Dataset, post: Dataset, tmp_path: Path) -> None:
    """``rows_0-2000/data_{i}.ckpt`` with ids, mask, final post-norm and aux behind a batch axis; and no larger."""
    count = run_export("specforge", pre, tmp_path, draft_vocabulary=100)
    assert (count.samples, count.files) == (len(LENGTHS), len(LENGTHS))
    for number in range(len(LENGTHS)):
        path = tmp_path / f"rows_0-2000/data_{number}.ckpt"
        record, sample = torch.load(path, weights_only=True), post[number]
        assert set(record) == {"input_ids", "loss_mask", "hidden_state", "aux_hidden_state"}
        assert same(record["input_ids"], sample["token_ids"]) and same(record["loss_mask"], sample["loss_mask"])
        assert same(record["hidden_state"], sample["final"][None])
        assert same(record["aux_hidden_state"], sample["aux"][None])
        assert path.stat().st_size < len(sample["token_ids"]) * (4 * HIDDEN * 2 + 16) + 4096
    check_vocabulary(pre, torch.load(tmp_path / "vocab_mapping/vocab_mapping.pt", weights_only=True))


def check_vocabulary(dataset: Dataset, mapping: dict[str, torch.Tensor]) -> None:
    """``d2t`` are offsets to the most frequent supervised tokens, ``t2d`` says which they are."""
    counts: Counter[int] = Counter()
    for sample in dataset:
        counts.update(sample["token_ids"][sample["loss_mask"] == 1].tolist())
    size = len(mapping["d2t"])
    assert (mapping["d2t"].dtype, mapping["t2d"].dtype) == (torch.int64, torch.bool)
    chosen = mapping["d2t"] + torch.arange(size)
    assert chosen.tolist() == mapping["t2d"].nonzero().flatten().tolist() and size == 100
    left_out = max((count for token, count in counts.items() if not mapping["t2d"][token]), default=0)
    assert min(counts[token] for token in chosen.tolist()) >= left_out
    assert len(mapping["t2d"]) == VOCABULARY


def test_angelslim(pre: Dataset, post: Dataset, tmp_path: Path) -> None:
    """``hidden_states`` are the captured layers there and ``target_hiddens`` the final state; all keep a batch axis."""
    run_export("angelslim", pre, tmp_path, draft_vocabulary=100)
    for number in range(len(LENGTHS)):
        record = torch.load(tmp_path / f"rank_0/rows_0-5000/data_{number}.ckpt", weights_only=True)
        sample = post[number]
        assert same(record["input_ids"], sample["token_ids"][None])
        assert same(record["loss_mask"], sample["loss_mask"][None])
        assert same(record["hidden_states"], sample["aux"][None])
        assert same(record["target_hiddens"], sample["final"][None])
    check_vocabulary(pre, torch.load(tmp_path / "vocab_mapping.pt", weights_only=True))


@pytest.mark.parametrize("pre_norm", [False, True])
def test_modelopt(pre: Dataset, post: Dataset, tmp_path: Path, pre_norm: bool) -> None:
    """A file a conversation, its flag saying on which side of the norm ``hidden_states`` is; no other .pt below."""
    run_export("modelopt", pre, tmp_path, pre_norm=pre_norm)
    assert len(list(tmp_path.rglob("*.pt"))) == len(LENGTHS)
    for sample in pre if pre_norm else post:
        record = torch.load(tmp_path / f"{sample['sample_id']}.pt", weights_only=True)
        assert record["conversation_id"] == sample["sample_id"] and record["hidden_states_prenorm"] is pre_norm
        assert same(record["hidden_states"], sample["final"]) and same(record["aux_hidden_states"], sample["aux"])
        assert same(record["input_ids"], sample["token_ids"]) and same(record["loss_mask"], sample["loss_mask"])


def test_speculators(pre: Dataset, tmp_path: Path) -> None:
    """Arrow rows in torch's format without holes, states with the pre-norm final last, layer numbers one higher."""
    datasets = pytest.importorskip("datasets")
    run_export("speculators", pre, tmp_path)
    rows = datasets.load_from_disk(str(tmp_path))
    assert len(rows) == len(LENGTHS) and set(rows.column_names) == {"input_ids", "loss_mask", "seq_len"}
    counts: Counter[int] = Counter()
    for number, sample in enumerate(pre):
        record = load_file(tmp_path / f"hidden_states/hs_{number}.safetensors")
        assert same(record["token_ids"], rows[number]["input_ids"]) and same(record["token_ids"], sample["token_ids"])
        assert torch.equal(rows[number]["loss_mask"], sample["loss_mask"])
        assert rows[number]["seq_len"] == len(sample["token_ids"])
        assert same(record["hidden_states"][:, :-1].flatten(1), sample["aux"])
        assert same(record["hidden_states"][:, -1], sample["final"])
        counts.update(sample["token_ids"][sample["loss_mask"] == 1].tolist())
    assert torch.load(tmp_path / "token_freq.pt", weights_only=True) == dict(counts)
    record = json.loads((tmp_path / "eaglefeed-export.json").read_text())
    assert (record["layer_ids"], record["layer_convention"]) == ([2, 6, 9], "input_of_layer")


def test_deepspec(pre: Dataset, post: Dataset, tmp_path: Path) -> None:
    """56-byte records point at each array of each sample; the arrays are the sample's."""
    run_export("deepspec", pre, tmp_path, samples_per_file=4)
    index = (tmp_path / "samples.idx").read_bytes()
    assert len(index) == 56 * len(LENGTHS)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["version"], manifest["num_samples"], manifest["num_shards"]) == (2, 9, 3)
    for number, sample in enumerate(post):
        identifier, shard, T, *offsets = struct.unpack_from("<QIIQQQQQ", index, 56 * number)
        data = (tmp_path / f"shard-{shard:05d}.bin").read_bytes()
        assert (identifier, shard, T) == (number, number // 4, len(sample["token_ids"]))
        assert np.frombuffer(data, "<i4", T, offsets[0]).tolist() == sample["token_ids"].tolist()
        assert np.frombuffer(data, "u1", T, offsets[1]).tolist() == [1] * T
        assert np.frombuffer(data, "u1", T, offsets[2]).tolist() == sample["loss_mask"].tolist()
        for name, offset, width in (("aux", offsets[3], 3 * HIDDEN), ("final", offsets[4], HIDDEN)):
            bits = np.frombuffer(data, "<i2", T * width, offset).reshape(T, width).copy()
            assert same(torch.from_numpy(bits).view(torch.bfloat16), sample[name])


@pytest.mark.parametrize("top_k", [0, 10])
def test_automodel(folder: Path, pre: Dataset, post: Dataset, tmp_path: Path, top_k: int) -> None:
    """Ids, mask and target probabilities are shifted left by one, aux is not; all padded to one length."""
    run_export(
        "automodel", pre, tmp_path, draft_vocabulary=100, model=folder / "model", samples_per_file=4, top_k=top_k
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["format_version"] == 2 and manifest["aux_layer_ids"] == [1, 5, 8]
    assert (manifest["num_samples"], manifest["shard_size"], manifest["seq_length"]) == (9, 4, 128)
    head = load_file(folder / "model/model.safetensors")["lm_head.weight"].float()
    selected = torch.tensor(manifest["selected_token_ids"])
    for number, sample in enumerate(post):
        shard = load_file(tmp_path / f"shard-{number // 4:06d}.safetensors")
        row = {name: tensor[number % 4] for name, tensor in shard.items()}
        T = len(sample["token_ids"])
        assert row["input_ids"].tolist() == [*sample["token_ids"].tolist()[1:], *[0] * (129 - T)]
        assert row["loss_mask"].tolist() == [*sample["loss_mask"].tolist()[1:], *[0] * (129 - T)]
        assert row["attention_mask"].tolist() == [1] * T + [0] * (128 - T)
        assert same(row["aux_hidden_states"][:T], sample["aux"]) and not row["aux_hidden_states"][T:].any()
        logits = sample["final"][1:].float() @ head.T
        probs = torch.softmax(logits[:, selected], -1)
        if top_k:
            values, places = row["target_probs_values"][: T - 1], row["target_probs_indices"][: T - 1]
            assert places.dtype == torch.int32 and values.shape[-1] == top_k
            assert torch.allclose(values.float().sum(-1), torch.ones(T - 1), atol=0.02)
            assert torch.equal(places[:, 0].long(), probs.argmax(-1))
        else:
            assert torch.allclose(row["target_probs"][: T - 1].float(), probs, atol=1e-2)
        said = torch.isin(logits.argmax(-1), selected) & sample["loss_mask"][1:].bool()
        assert row["position_mask"][: T - 1, 0].tolist() == said.tolist() and not row["position_mask"][T - 1 :].any()
    weight = load_file(tmp_path / "target_embeddings.safetensors")["weight"]
    assert weight.dtype == torch.float32 and weight.shape == (VOCABULARY, HIDDEN)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_stopped_export_goes_on(folder: Path, pre: Dataset, tmp_path: Path, name: str) -> None:
    """Stopped after some files, with one truncated since: the same command ends with the folder of an unbroken one."""
    options: dict[str, Any] = {"draft_vocabulary": 100, "model": folder / "model", "samples_per_file": 2}
    run_export(name, pre, tmp_path / "whole", **options)
    exporter = make_exporter(name, pre, ExportOptions(quiet=True, **options))
    left = 3

    def write_and_die(path: Path, numbers: range, samples: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        type(exporter).write(exporter, path, numbers, samples)

    exporter.write = write_and_die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        export(exporter, tmp_path / "again", threads=1, quiet=True)
    written = next(iter(make_exporter(name, pre, ExportOptions(**options)).units())).path
    cut = tmp_path / "again" / written
    cut.write_bytes(cut.read_bytes()[:-20])
    count = run_export(name, pre, tmp_path / "again", **options)
    assert count.samples == len(LENGTHS) and 0 < count.already_done < len(LENGTHS)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def contents(folder: Path) -> dict[str, int]:
    """Every file below, but for the journal and Arrow's own random fingerprint, with its size."""
    skipped = ("eaglefeed-export.done", "state.json")
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in skipped
    }


def test_another_export_is_not_mixed_in(pre: Dataset, tmp_path: Path) -> None:
    """A folder that holds other samples, another format or foreign files is refused, with the difference."""
    run_export("modelopt", pre, tmp_path)
    with pytest.raises(IdentityMismatch, match="samples 9 there, 1 here"):
        run_export("modelopt", pre.select(max_tokens=10), tmp_path)
    with pytest.raises(IdentityMismatch, match="format 'modelopt' there, 'deepspec' here"):
        run_export("deepspec", pre, tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("mine")
    with pytest.raises(IdentityMismatch, match="not empty"):
        run_export("modelopt", pre, tmp_path / "own")


def test_a_lost_file_fails_the_count(pre: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that disappears before the end is missed by the end count."""
    exporter = make_exporter("modelopt", pre, ExportOptions(quiet=True))
    victim = f"{pre.sample_id(4)}.pt"
    monkeypatch.setattr(exporter, "write_extras", lambda folder: (folder / victim).unlink() or [])
    with pytest.raises(CorruptData, match=f"1 of 9 files are missing.*{victim}"):
        export(exporter, tmp_path, quiet=True)


def test_what_a_format_cannot_hold_is_refused(tmp_path: Path, pre: Dataset) -> None:
    """K other than 3, states other than bfloat16, an empty selection, no head: each with its reason."""
    make_run(str(tmp_path / "four"), tmp_path, [9], identity=make_identity(layer_ids=(1, 2, 5, 8)))
    four = eaglefeed.open(str(tmp_path / "four"))
    for name in ("specforge", "angelslim", "automodel"):
        with pytest.raises(UsageError, match=f"{name} holds 3 captured layers and run 'synthetic' has 4"):
            run_export(name, four, tmp_path / "out")
    with pytest.raises(UsageError, match="no sample is selected"):
        run_export("modelopt", pre.select(min_tokens=9999), tmp_path / "out")
    with pytest.raises(UsageError, match="--model CHECKPOINT"):
        run_export("automodel", pre, tmp_path / "out")
    with pytest.raises(UsageError, match="the longest selected sample has 128 tokens"):
        run_export("automodel", pre, tmp_path / "out", model=tmp_path, sequence_length=64)


def test_a_mask_that_is_not_binary_is_refused(pre: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of 2 in a loss mask is refused with the sample, not written as it is."""
    read = Dataset.__getitems__

    def weighted(self: Dataset, numbers: Any) -> Any:
        samples = read(self, numbers)
        samples[0]["loss_mask"][0] = 2
        return samples

    monkeypatch.setattr(Dataset, "__getitems__", weighted)
    with pytest.raises(UsageError, match=r"a loss mask of 0 and 1, and sample [0-9a-f]{32} has the value 2"):
        run_export("specforge", pre, tmp_path)


def test_a_missing_norm_is_refused(tmp_path: Path) -> None:
    """Without the run's norm no post-norm state can be made: refused; the pre-norm formats still take the run."""
    make_run(str(tmp_path / "store"), tmp_path, [9, 12])
    open_store(str(tmp_path / "store")).delete(norm_key("synthetic"))
    run = eaglefeed.open(str(tmp_path / "store"))
    with pytest.raises(UsageError, match=r"no final_norm\.safetensors"):
        run_export("specforge", run, tmp_path / "out")
    assert run_export("modelopt", run, tmp_path / "out", pre_norm=True).samples == 2


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``eaglefeed export --select … --json`` writes what was selected and counts it."""
    arguments = ["export", str(folder / "store"), str(tmp_path), "--format", "modelopt", "--quiet", "--json"]
    assert main([*arguments, "--select", "tokens>=60,first=3"]) == 0
    count = json.loads(capsys.readouterr().out)
    assert (count["samples"], count["files"], count["already_done"]) == (3, 3, 0)
    assert len(list(tmp_path.glob("*.pt"))) == 3
