"""The main command in a subprocess, on real servers and a real engine: done, done again, and stopped in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

import eaglefeed
from tests.checkpoints import make_checkpoint

RUN_SECONDS = 500
NUM_CONVERSATIONS = 60
SYSTEM = "You answer briefly, and you say so when you do not know. " * 4


def conversation(number: int) -> dict[str, object]:
    """One of a set that shares a long system prompt."""
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"What is {number} times {number + 1}?"},
        {"role": "assistant", "content": f"It is {number * (number + 1)}." + " Really." * (number % 7)},
    ]
    return {"id": f"c{number}", "messages": messages}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a tiny model, a run file and conversations: 60 unique, 5 duplicates, 2 broken rows."""
    make_checkpoint("llama", tmp_path / "model")
    rows = [json.dumps(conversation(number)) for number in range(NUM_CONVERSATIONS)]
    rows += [json.dumps(conversation(number) | {"id": f"again{number}"}) for number in range(5)]
    rows[10:10] = ['{"messages": [', '{"messages": []}']
    (tmp_path / "data.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "run.toml").write_text(
        'name = "tiny"\n[model]\npath = "model"\nlayers = [1, 3, 4]\n[data]\nmax_length = 2048\nbatch_tokens = 4096\n'
        "[spool]\nmax_disk_percent = 95\n"
    )
    return tmp_path


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Whatever a test does, nothing that the command started outlives it; what other tests' fixtures run stays."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child not in before and child.is_running()]
    for child in left:
        child.kill()
    assert not left


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "eaglefeed.cli", "run", "data.jsonl", "--run", "run.toml", "--json", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("REDIS", "AWS", "S3_"))}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "EAGLEFEED_NODE": "acceptance"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=home, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, dict[str, int], str]:
    """Exit code, the audit's JSON, and what was said beside it."""
    out, said = process.communicate(timeout=RUN_SECONDS)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    return process.returncode, json.loads(lines[-1]) if lines else {}, said


def assert_complete(status: int, audit: dict[str, int], said: str) -> None:
    assert status == 0, said
    assert (audit["unique"], audit["stored"], audit["rejected"]) == (NUM_CONVERSATIONS, NUM_CONVERSATIONS, 0)
    assert (audit["missing"], audit["duplicate"], audit["short"]) == (0, 0, 0)


def logs(home: Path, names: Sequence[str]) -> str:
    return "\n".join((home / ".eaglefeed/tiny/logs" / f"{name}.log").read_text() for name in names)


@pytest.mark.timeout(2 * RUN_SECONDS)
def test_run_takes_conversations_to_audited_shards_once(home: Path) -> None:
    """From rows to an audit without a gap, by way of a real S3 server; the second time there is nothing to do."""
    options = ("--store", "embedded", "--copy-to", "shards", "--deep")
    assert_complete(*finish(start(home, *options)))
    rejects = [json.loads(line) for line in (home / ".eaglefeed/tiny/rejects.jsonl").read_text().splitlines()]
    assert [reject["line"] for reject in rejects] == [11, 12]
    dataset = eaglefeed.open(str(home / "shards"), run="tiny")
    assert len(dataset) == NUM_CONVERSATIONS
    assert all(len(sample["aux"]) == len(sample["token_ids"]) for sample in dataset)
    before = (home / ".eaglefeed/tiny/logs/engine-cpu.log").stat().st_mtime

    status, audit, said = finish(start(home, *options))
    assert_complete(status, audit, said)
    counts = json.loads(logs(home, ["producer"]).splitlines()[-1])
    assert counts["enqueued"] == 0
    assert (home / ".eaglefeed/tiny/logs/engine-cpu.log").stat().st_mtime == before, "an engine was started for nothing"


@pytest.mark.timeout(2 * RUN_SECONDS)
def test_a_run_that_was_stopped_goes_on(home: Path) -> None:
    """Ctrl-C in the middle leaves no process and no half file; the same command completes the run."""
    process = start(home, "--store", "store")
    manifests = home / "store/tiny/manifests"
    deadline = time.monotonic() + RUN_SECONDS
    while not (manifests.is_dir() and any(manifests.glob("*.json"))):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode in (0, 130), said
    assert not list((home / "store").rglob("*.part"))

    assert_complete(*finish(start(home, "--store", "store", "--deep")))
    spool = home / ".eaglefeed/spool/tiny"
    assert not list(spool.glob("*.dump")) and not list(spool.glob("*.part"))


def test_a_wrong_run_file_is_said_before_anything_starts(home: Path) -> None:
    """An unknown key ends the command at once with the file, the key and the nearest right one."""
    (home / "run.toml").write_text('name = "tiny"\n[model]\npath = "model"\nlayer = [1]\n')
    process = start(home)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "run.toml" in said and "'model.layer'" in said and "'layers'" in said
    assert not (home / ".eaglefeed").exists()
