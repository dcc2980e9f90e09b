"""The spool counts what lies in it and what is promised, alike for all its workers, and never fills its disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.run import RunSettings, SpoolSettings
from eaglefeed.errors import EnvironmentFault, SpoolFull
from local.machine_checks import check_disk
from storage import file_system, spool
from storage.file_system import check_file_system, file_system_of
from storage.spool import Spool

BATCH = "a" * 32


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_POLL_SECONDS", 0.02)


def make(tmp_path: Path, max_bytes: int = 1000, high: float = 0.9, low: float = 0.5) -> Spool:
    settings = SpoolSettings(
        path=str(tmp_path / "spool"), max_bytes=max_bytes, max_disk_percent=95.0, high_mark=high, low_mark=low
    )
    made = Spool(settings)
    made.open()
    return made


def fill(made: Spool, num_bytes: int, name: str = "x.dump") -> Path:
    path = made.folder("run") / name
    path.write_bytes(bytes(num_bytes))
    return path


def test_it_is_private(tmp_path: Path) -> None:
    """Conversations' states are for this user alone."""
    made = make(tmp_path)
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert made.folder("run").stat().st_mode & 0o777 == 0o700


def test_usage_is_what_lies_there_over_all_runs(tmp_path: Path) -> None:
    """Files of every run count, those of a node's several engines too, and nothing once they are gone."""
    made = make(tmp_path)
    (made.folder("run") / "r1").mkdir()
    paths = [fill(made, 100), made.folder("other") / "y.dump", fill(made, 30, "r1/z.dump")]
    paths[1].write_bytes(bytes(250))
    assert made.usage().spool_bytes == 380
    for path in paths:
        path.unlink()
    assert made.usage().spool_bytes == 0


def test_the_limit_is_the_lesser_of_bytes_and_per_cent(tmp_path: Path) -> None:
    """A budget beyond the disk's share is cut to it."""
    huge = make(tmp_path, max_bytes=1 << 60)
    usage = huge.usage()
    assert usage.limit_bytes == int(usage.disk_bytes * 0.95)
    assert make(tmp_path).usage().limit_bytes == 1000


def test_room_ends_at_the_high_mark_and_returns_at_the_low_one(tmp_path: Path) -> None:
    """Extraction pauses above the high mark and resumes only when usage has sunk to the low one."""
    made = make(tmp_path)
    first, second = fill(made, 500, "1.dump"), fill(made, 300, "2.dump")
    assert made.has_room(100) and not made.has_room(101)
    waiting, waits = threading.Event(), []

    def wait() -> None:
        made.wait_for_room(101, on_wait=lambda usage: waits.append(usage.spool_bytes) or waiting.set())

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(5)
    second.unlink()  # 500 + 101 are below the high mark, and above the low one
    time.sleep(0.1)
    assert thread.is_alive()
    first.unlink()
    thread.join(5)
    assert not thread.is_alive()
    assert waits[0] == 800


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    """A worker that is to stop does not wait for room; the message has the numbers."""
    made = make(tmp_path)
    fill(made, 900)
    with pytest.raises(SpoolFull, match="900 B of 1000 B"):
        made.wait_for_room(50, is_stopping=lambda: True)


def test_an_empty_spool_takes_what_is_possible(tmp_path: Path) -> None:
    """A batch between the high mark and the limit is not locked out for ever; one beyond the limit is an error."""
    made = make(tmp_path)
    made.wait_for_room(950)
    with pytest.raises(EnvironmentFault, match=r"one batch needs 1001 B .* raise spool.max_bytes"):
        made.wait_for_room(1001)


def test_what_is_promised_counts(tmp_path: Path) -> None:
    """A running batch's room is held before its dumps are there, and not twice when they come."""
    made, other = make(tmp_path), make(tmp_path)
    with made.reserve(BATCH, 600):
        assert other.usage().spool_bytes == 600
        assert not other.has_room(400)
        fill(made, 200, f"{BATCH}-sample-1.dump")
        assert other.usage().spool_bytes == 600
        fill(made, 500, f"{BATCH}-sample-2.dump")
        assert other.usage().spool_bytes == 700
    assert other.usage().spool_bytes == 700


def test_workers_at_once_do_not_promise_more_than_there_is(tmp_path: Path) -> None:
    """Eight that ask at the same moment get room one after the other where only two fit."""
    made = make(tmp_path)
    held, most, lock = [0], [0], threading.Lock()

    def work(number: int) -> None:
        with Spool(made.settings).reserve(f"{number:032x}", 400):
            with lock:
                held[0] += 1
                most[0] = max(most[0], held[0])
            time.sleep(0.05)
            with lock:
                held[0] -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most[0] == 2
    assert made.usage().spool_bytes == 0


def test_a_dead_process_s_promise_is_void(tmp_path: Path) -> None:
    """A reservation of a process that is gone is removed."""
    made = make(tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    claim = made.path / ".reserved" / f"{BATCH}.{gone.pid}"
    claim.write_text("900")
    assert made.usage().spool_bytes == 0
    assert not claim.exists()


def test_a_full_disk_is_refused_with_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk above its share does not take a spool: the message has per cent, bytes and the setting."""
    monkeypatch.setattr(spool, "disk_usage", lambda path: (97 << 30, 100 << 30))
    with pytest.raises(EnvironmentFault, match=r"97\.0 % full \(3\.0 GiB of 100\.0 GiB free\).*max_disk_percent = 95"):
        make(tmp_path)


def test_no_room_is_promised_that_the_disk_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others fill the disk as well: its per cent bounds the spool, whatever the budget says."""
    made = make(tmp_path, max_bytes=10 << 30)
    monkeypatch.setattr(spool, "disk_usage", lambda path: (94 << 30, 100 << 30))
    assert made.has_room(1 << 29)
    assert not made.has_room(2 << 30)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_a_disk_of_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A spool belongs on the node's own disk."""
    monkeypatch.setattr(file_system, "file_system_of", lambda path: (kind, "/mnt/far"))
    with pytest.raises(EnvironmentFault, match=rf"{kind} at /mnt/far, .* free\) is not this node's own disk"):
        check_file_system(tmp_path, 1000)


def test_memory_is_refused_where_it_would_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm fills and the node dies: a budget above half of the free memory is refused, a small one is not."""
    monkeypatch.setattr(file_system, "file_system_of", lambda path: ("tmpfs", "/dev/shm"))
    monkeypatch.setattr(file_system, "_available_memory_bytes", lambda: 10 << 30)
    with pytest.raises(EnvironmentFault, match=r"is memory: its budget of 6\.0 GiB is more than half of the 10\.0 GiB"):
        check_file_system(tmp_path, 6 << 30)
    check_file_system(tmp_path, 4 << 30)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in its place is the environment's fault, and the setting is named."""
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(EnvironmentFault, match=r"spool\.path = .*cannot be made"):
        make(tmp_path)


def test_the_file_system_of_a_path_is_the_kernel_s() -> None:
    """The innermost mount wins."""
    assert file_system_of(Path("/proc/self"))[0] == "proc"
    assert file_system_of(Path(os.sep))[1] == "/"


def test_every_command_counts_a_disk_as_df_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 GiB of which the system keeps 100 and 60 of the rest are used: 60 % full for the spool and for doctor."""
    shares = {"total": 200 << 30, "used": 60 << 30, "free": 40 << 30}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(**shares))
    settings = RunSettings.model_validate(
        {"name": "run", "model": {"path": "model"}, "spool": {"path": str(tmp_path), "max_disk_percent": 61}}
    )
    assert spool.disk_usage(tmp_path) == (60 << 30, 100 << 30)
    assert [finding.verdict for finding in check_disk(settings)] == ["warning"]  # 40 GiB for a budget of 64
    assert "60 % used" in next(iter(check_disk(settings))).fact
