"""Several engines of a node: their own addresses, devices and folders, and no name that leads anywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config import environment, names
from config.run import EngineSettings
from eaglefeed.errors import CorruptData, ProofFailed, UsageError
from tests.runs import make_sample
from workers.answered_dump import dump_folder, remove_dump
from workers.engine import Answer
from workers.engine_launch import _devices_of


@pytest.mark.parametrize("name", ["a.dump", "r0/a.dump", "r999/0b-1c.dump"])
def test_a_dump_lies_in_the_runs_folder_or_in_a_replicas(name: str) -> None:
    """One level, of the replicas' form."""
    assert names.checked_dump(name) == name


OUTSIDE = ("..", "../a.dump", "/etc/passwd", "r1/../../a.dump", "r1//a.dump", "r1/r2/a.dump", "other/a.dump")
NO_NAMES = ("", ".", "r01/a", "r1000/a.dump", "r-1/a.dump", "r1/", "r1/.hidden", "a\0b", "a\n", "r1/a.dump\n", 7, None)


@pytest.mark.parametrize("name", [*OUTSIDE, *NO_NAMES])
def test_no_other_name_is_taken_for_a_dumps(name: Any) -> None:
    """Whatever stands in Redis, no path outside is opened or deleted."""
    with pytest.raises(CorruptData, match="outside its folder"):
        names.checked_dump(name)


def test_the_replicas_number_is_all_that_is_taken_from_a_receipt() -> None:
    """A number in its bounds; a name, a path or anything else is refused by name."""
    folder = Path("/spool/run")
    assert dump_folder({}, folder) == dump_folder({"replica": None}, folder) == folder
    assert dump_folder({"replica": 12}, folder) == folder / "r12"
    for wrong in (-1, 1000, True, 1.0, "1", "../..", "r1", [1]):
        with pytest.raises(ProofFailed, match="other-request"):
            dump_folder({"replica": wrong}, folder)


def test_a_failed_answers_dump_is_found_wherever_it_lies(tmp_path: Path) -> None:
    """Also when the receipt does not say in which folder; its neighbours stay."""
    rid = f"{'a' * 32}-{'b' * 32}-0badcafe"
    for folder in (tmp_path, tmp_path / "r0", tmp_path / "r1"):
        folder.mkdir(exist_ok=True)
        (folder / f"{rid}.dump").touch()
        (folder / "other.dump").touch()
    remove_dump(Answer(make_sample(1, 4), rid), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.dump")) == ["other.dump"] * 3


@pytest.mark.parametrize(
    ("url", "replicas", "expected"),
    [
        ("http://a:30000/", 1, ["http://a:30000"]),
        ("http://a:30000", 3, ["http://a:30000", "http://a:30001", "http://a:30002"]),
        ("http://[::1]:30000", 2, ["http://[::1]:30000", "http://[::1]:30001"]),
        ("http://a:1, http://b:2", 2, ["http://a:1", "http://b:2"]),
    ],
)
def test_one_address_stands_for_all_replicas(
    monkeypatch: pytest.MonkeyPatch, url: str, replicas: int, expected: list[str]
) -> None:
    """They listen on consecutive ports; a list is taken as it is."""
    monkeypatch.setenv("EAGLEFEED_ENGINE_URL", url)
    assert environment.engine_urls(replicas) == expected


def test_an_address_without_a_port_cannot_stand_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a usage error that says so."""
    monkeypatch.setenv("EAGLEFEED_ENGINE_URL", "http://engine")
    with pytest.raises(UsageError, match="name the port"):
        environment.engine_urls(2)


def test_each_replica_has_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of those that are visible, in order; too few are refused before anything starts."""
    engine = EngineSettings(tensor_parallel=2, replicas=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [_devices_of(engine, replica) for replica in (0, 1)] == [["0", "1"], ["2", "3"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [_devices_of(engine, replica) for replica in (0, 1)] == [["4", "5"], ["6", "7"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(UsageError, match="replicas = 4"):
        _devices_of(engine, 0)
