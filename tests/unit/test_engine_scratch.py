"""What an engine leaves in the temporary folder and in shared memory goes with it, however it ends."""

from __future__ import annotations

import getpass
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.engine import EngineEnded
from workers.engine_command import EngineProcesses
from workers.engine_launch import CHECKOUT, Launch
from workers.engine_scratch import PREFIX, SHARED_MEMORY, engine_scratch, sweep

LEAVES_FILES = """
import mmap, os, pathlib, socket, sys, tempfile, time
for _ in range(5):
    tempfile.NamedTemporaryFile(delete=False)
socket.socket(socket.AF_UNIX).bind(tempfile.mkdtemp() + "/" + "s" * 40)
shared = pathlib.Path("/dev/shm", "sglang_test_" + sys.argv[1])
shared.write_bytes(bytes(4096))
mapped = mmap.mmap(os.open(shared, os.O_RDWR), 4096)
print(tempfile.gettempdir(), flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(7)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A system's temporary folder of the test's own, with a short path; pytest has made its own before."""
    with tempfile.TemporaryDirectory(prefix="ef-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def scratches(base: Path) -> list[Path]:
    """What lies there beside the test's log and this user's cache of compiled kernels."""
    return sorted(path for path in base.iterdir() if path.name not in ("log", getpass.getuser()))


def left_in_shared_memory(base: Path) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"sglang_test_{base.name}*"))


@pytest.mark.parametrize("seconds", [60, 0.5], ids=["stopped", "crashed"])
def test_an_engine_leaves_nothing(base: Path, seconds: float) -> None:
    """Files, sockets and shared memory are gone when it was stopped, and when it ended by itself and starts again."""
    command = [sys.executable, "-c", LEAVES_FILES, base.name, str(seconds)]
    with (base / "log").open("w+b") as log:
        for _ in range(2):
            with EngineProcesses([Launch(command, {})], log) as processes:
                log.truncate(0)
                while not (base / "log").stat().st_size:
                    time.sleep(0.01)
                scratch = Path((base / "log").read_text().strip("\0\n"))
                assert (scratch.parent, scratch.stat().st_mode & 0o777) == (base, 0o700)
                assert len([path for path in scratch.iterdir() if not path.is_symlink()]) == 6
                processes._note_shared_memory()  # as when it has become ready
                assert len(left_in_shared_memory(base)) == 1
                if seconds < 1:
                    processes.running[0].wait()
                    with pytest.raises(EngineEnded, match="exit code 7"):
                        processes.require_running()
            assert scratches(base) == []
            assert left_in_shared_memory(base) == []


def test_what_a_killed_supervisor_left_is_swept_by_the_next_start(base: Path, tmp_path: Path) -> None:
    """A lock tells the dead from the living, whose folder is left alone; nothing but shared memory goes elsewhere."""
    shared = SHARED_MEMORY / f"sglang_test_{base.name}"
    shared.touch()
    elsewhere = tmp_path / "sglang_elsewhere"
    elsewhere.touch()
    hold = (
        f"import sys, tempfile, time; tempfile.tempdir = {str(base)!r}\n"
        "from workers.engine_scratch import engine_scratch\n"
        "with engine_scratch() as scratch:\n    scratch.note_shared_memory([])\n"
        f"    (scratch.folder / '.shared-memory').write_text({f'{shared}{chr(10)}{elsewhere}'!r})\n"
        "    print(scratch.folder, flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", hold], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with engine_scratch() as ours:
            assert scratches(base) == sorted([ours.folder, theirs])
        assert sweep(base) == []
        other.kill()
        other.wait()
    with engine_scratch() as ours:
        assert scratches(base) == [ours.folder]
    assert scratches(base) == []
    assert not shared.exists() and elsewhere.exists()


def test_compiled_kernels_are_there_at_the_next_start(base: Path) -> None:
    """What packages cache under the user's name in TMPDIR lies outside, private, and survives."""
    for number in range(2):
        with engine_scratch() as scratch:
            cache = scratch.folder / getpass.getuser() / "cutlass_python_cache"
            cache.mkdir(parents=True, exist_ok=True)
            assert len(list(cache.iterdir())) == number
            (cache / f"kernel-{number}").touch()
    assert (base / getpass.getuser()).stat().st_mode & 0o777 == 0o700


def test_a_long_temporary_folder_is_not_taken(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Unix socket's path has 107 bytes at most, so engines of a machine with a long TMPDIR take /tmp."""
    long = base / ("long" * 12)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with engine_scratch() as scratch:
        assert scratch.folder.parent == Path("/tmp")
        assert scratch.folder.name.startswith(PREFIX)
