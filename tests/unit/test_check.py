"""Checking trainers' dumps: each planted fault is found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import eaglefeed
from eaglefeed.cli import main
from eaglefeed.dataset import Dataset
from eaglefeed.export.command import make_exporter
from eaglefeed.export.exporter import ExportOptions
from eaglefeed.export.job import export
from eaglefeed.imports.check import check_folder
from eaglefeed.imports.readers import READERS, reader_for
from tests.runs import VOCABULARY, make_run

LENGTHS = [100 + 7 * number for number in range(24)]
FINAL = {"specforge": "hidden_state", "angelslim": "target_hiddens", "modelopt": "hidden_states"}
AUX = {"specforge": "aux_hidden_state", "angelslim": "hidden_states", "modelopt": "aux_hidden_states"}
Found = set[tuple[str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("run")
    make_run(str(folder / "store"), folder, LENGTHS)
    return eaglefeed.open(str(folder / "store"))


@pytest.fixture
def dumps(run: Dataset, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, Path, list[Path]]:
    """A clean folder of the parameter's format, and its files."""
    name: str = request.param
    export(make_exporter(name, run, ExportOptions(quiet=True)), tmp_path, quiet=True)
    return name, tmp_path, list(reader_for(name).paths(tmp_path))


def found(name: str, folder: Path) -> Found:
    return {(fault.path, fault.kind) for fault in check_folder(reader_for(name), folder, quiet=True).faults}


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    record = torch.load(path, weights_only=True)
    edit(record)
    torch.save({key: value.clone() if hasattr(value, "clone") else value for key, value in record.items()}, path)


@pytest.mark.parametrize("dumps", sorted(READERS), indirect=True)
def test_a_clean_folder_has_no_faults(dumps: tuple[str, Path, list[Path]]) -> None:
    """What the exporters write passes; every file's ids could be proved."""
    name, folder, paths = dumps
    report = check_folder(reader_for(name), folder, quiet=True)
    assert (report.faults, report.untested, report.files) == ([], 0, len(paths))
    assert report.tokens == sum(LENGTHS)


@pytest.mark.parametrize("dumps", sorted(FINAL), indirect=True)
def test_every_planted_fault_is_found_and_nothing_else(dumps: tuple[str, Path, list[Path]], run: Dataset) -> None:
    """Eight kinds, each planted once in one folder: eight faults, each with its file and kind."""
    name, folder, paths = dumps
    aux, final = AUX[name], FINAL[name]
    rows = 1 if name in ("specforge", "angelslim") else 0  # the axis of rows

    def cut(tensor: Any, count: int) -> Any:
        return tensor.narrow(rows, count, tensor.shape[rows] - count)

    def row(tensor: Any) -> Any:
        return tensor[0] if rows else tensor

    def missing_rows(record: dict[str, Any]) -> None:
        record[aux], record[final] = cut(record[aux], 64), cut(record[final], 64)

    def zero_block(record: dict[str, Any]) -> None:
        row(record[aux])[20:52] = 0
        row(record[final])[20:52] = 0

    def one_nan(record: dict[str, Any]) -> None:
        row(record[aux])[33, 5] = torch.nan

    def padding(record: dict[str, Any]) -> None:
        for key in ("input_ids", "loss_mask", aux, final):
            axis = record[key].ndim - 1 if key in ("input_ids", "loss_mask") else rows
            shape = list(record[key].shape)
            shape[axis] = 30
            record[key] = torch.cat([record[key], torch.zeros(shape, dtype=record[key].dtype)], axis)

    def others_ids(record: dict[str, Any]) -> None:
        other = torch.load(paths[11], weights_only=True)["input_ids"]
        length = record["input_ids"].shape[-1]
        ids = torch.cat([other, other], -1)[..., :length]
        record["input_ids"] = ids

    def pre_norm(record: dict[str, Any]) -> None:
        ids = record["input_ids"].flatten().tolist()
        sample = next(sample for sample in run if sample["token_ids"].tolist() == ids)
        record[final] = sample["final"].reshape(record[final].shape)

    change(paths[0], missing_rows)
    change(paths[1], zero_block)
    change(paths[2], one_nan)
    paths[3].write_bytes(paths[3].read_bytes()[:-5000])
    second = paths[-1].with_name("z" + paths[-1].name)
    second.write_bytes(paths[4].read_bytes())
    change(paths[5], padding)
    change(paths[6], others_ids)
    change(paths[7], pre_norm)
    planted = {
        (paths[0], "short"),
        (paths[1], "zero-rows"),
        (paths[2], "not-finite"),
        (paths[3], "unreadable"),
        (second, "duplicate"),
        (paths[5], "padded"),
        (paths[6], "mismatched-ids"),
        (paths[7], "other-norm"),
    }
    assert found(name, folder) == {(str(path.relative_to(folder)), kind) for path, kind in planted}


@pytest.mark.parametrize("dumps", ["speculators"], indirect=True)
def test_every_planted_fault_in_speculators_data(dumps: tuple[str, Path, list[Path]]) -> None:
    """Its files against its Arrow rows too: missing, another row's ids, a file without a row; post among pre-norm."""
    name, folder, paths = dumps

    def edit(number: int, change_states: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Path, dict[str, Any]]:
        record = load_file(paths[number])
        record["hidden_states"] = change_states(record["hidden_states"]).contiguous()
        save_file(record, paths[number])
        return paths[number], record

    def zeroed(states: torch.Tensor) -> torch.Tensor:
        states[10:40] = 0
        return states

    def not_finite(states: torch.Tensor) -> torch.Tensor:
        states[7, 3, 2] = torch.inf
        return states

    def normed(states: torch.Tensor) -> torch.Tensor:
        states[:, -1] = states[:, -1] / states[:, -1].float().pow(2).mean(-1, keepdim=True).sqrt()
        return states

    edit(0, lambda states: states[:-4])
    edit(1, zeroed)
    edit(2, not_finite)
    paths[3].write_bytes(paths[3].read_bytes()[:-100])
    paths[4].unlink()
    save_file({**load_file(paths[5]), "token_ids": load_file(paths[6])["token_ids"]}, paths[5])
    edit(7, lambda states: states.roll(1, 0))
    edit(8, normed)
    stray = folder / "hidden_states/hs_99.safetensors"
    stray.write_bytes(paths[9].read_bytes())
    planted = {
        (paths[0], "short"),
        (paths[1], "zero-rows"),
        (paths[2], "not-finite"),
        (paths[3], "unreadable"),
        (paths[4], "missing"),
        (paths[5], "mismatched-ids"),
        (paths[7], "mismatched-ids"),
        (paths[8], "other-norm"),
        (stray, "mismatched-ids"),
    }
    assert found(name, folder) == {(str(path.relative_to(folder)), kind) for path, kind in planted}


@pytest.mark.parametrize("dumps", ["specforge"], indirect=True)
def test_ids_of_a_sample_of_another_length(dumps: tuple[str, Path, list[Path]]) -> None:
    """Another sample's ids whole, so that rows and tokens differ in number: mismatched ids, not a short file or a copy.

    A short copy of its own sample is both short and a duplicate.
    """
    name, folder, paths = dumps
    other = torch.load(paths[11], weights_only=True)["input_ids"]

    def others_ids(record: dict[str, Any]) -> None:
        record["input_ids"], record["loss_mask"] = other, torch.ones_like(other)

    def lose_rows(record: dict[str, Any]) -> None:
        for key in ("aux_hidden_state", "hidden_state"):
            record[key] = record[key][:, 40:]

    change(paths[6], others_ids)
    copy = paths[-1].with_name("z" + paths[-1].name)
    copy.write_bytes(paths[4].read_bytes())
    change(copy, lose_rows)
    assert found(name, folder) == {
        (str(paths[6].relative_to(folder)), "mismatched-ids"),
        (str(copy.relative_to(folder)), "short"),
        (str(copy.relative_to(folder)), "duplicate"),
    }


@pytest.mark.parametrize("dumps", ["specforge"], indirect=True)
def test_rows_shifted_by_one_are_found(dumps: tuple[str, Path, list[Path]]) -> None:
    """States one row late have the right count, no zero and no NaN; they are found by their tokens."""
    name, folder, paths = dumps

    def shift(record: dict[str, Any]) -> None:
        record["aux_hidden_state"] = record["aux_hidden_state"].roll(1, 1)

    change(paths[9], shift)
    assert found(name, folder) == {(str(paths[9].relative_to(folder)), "mismatched-ids")}


@pytest.mark.parametrize("dumps", ["specforge"], indirect=True)
def test_a_pickle_is_never_run(dumps: tuple[str, Path, list[Path]]) -> None:
    """A dump whose pickle would run code is reported as unreadable; the code does not run."""
    name, folder, paths = dumps

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "ran",))

    torch.save({"input_ids": Payload()}, paths[0])
    assert found(name, folder) == {(str(paths[0].relative_to(folder)), "unreadable")}
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("dumps", ["modelopt"], indirect=True)
def test_the_command_reports(dumps: tuple[str, Path, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    """``eaglefeed check`` exits 0 on a clean folder, 1 on a faulty one, and names file, kind and numbers."""
    name, folder, paths = dumps
    assert main(["check", "--format", name, str(folder), "--quiet"]) == 0
    change(paths[0], lambda record: record.update(aux_hidden_states=record["aux_hidden_states"][:-3]))
    capsys.readouterr()
    assert main(["check", "--format", name, str(folder), "--quiet"]) == 1
    out = capsys.readouterr().out
    assert f"{paths[0].name}: short: captured layers" in out and "(3 of difference)" in out


@pytest.mark.parametrize("dumps", sorted(READERS), indirect=True)
def test_an_import_makes_a_run(
    dumps: tuple[str, Path, list[Path]], run: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Dumps become a run of the same tensors, bit for bit; a faulty file stays out; a second import adds nothing."""
    name, folder, paths = dumps
    paths[0].write_bytes(paths[0].read_bytes()[:-1000])
    work = tmp_path_factory.mktemp("import")
    config = {"num_hidden_layers": 12, "hidden_size": 64, "vocab_size": VOCABULARY}
    (work / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": torch.ones(64)}, work / "model.safetensors")
    store = str(work / "store")
    arguments = ["import", "--format", name, str(folder), "--model", str(work), "--name", "old", "--store", store]
    arguments += ["--layers", "1,5,8", "--batch-tokens", "900", "--quiet"]
    assert main(arguments) == 1
    imported = eaglefeed.open(store)
    assert main(arguments) == 1
    assert len(eaglefeed.open(store)) == len(imported) == len(LENGTHS) - 1
    kind = imported.identity.final_state
    assert kind == ("pre_norm" if name == "speculators" else "post_norm")
    originals = run.with_form(final=kind)
    for number in range(len(imported)):
        sample = imported[number]
        (original,) = list(originals.select(ids=[sample["sample_id"]]))
        for key in ("token_ids", "loss_mask", "aux", "final"):
            assert torch.equal(sample[key], original[key])
