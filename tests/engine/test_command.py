"""``eaglefeed engine`` and ``eaglefeed prove`` as a person or a script runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from config.ports import free_port
from tests.engine.engines import Traces, leaves_nothing, tiny_settings
from workers.engine_launch import CHECKOUT

SMOLLM2 = CHECKOUT / ".eaglefeed/models/SmolLM2-135M-Instruct"


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "eaglefeed.cli", *arguments]
    return subprocess.Popen(program, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, **options)


def run_file(folder: Path) -> Path:
    settings = tiny_settings("llama", folder)
    path = folder / "run.toml"
    path.write_text(
        f'name = "{settings.name}"\n[model]\npath = "{settings.model.path}"\nlayers = [1, 3, 4]\n'
        f'[spool]\npath = "{folder / "spool"}"\nmax_disk_percent = 95\n'
    )
    return path


def test_an_engine_says_one_line_and_leaves_no_orphan(tmp_path: Path) -> None:
    """Ready is one line on standard output; killed without a word, it takes all of SGLang's processes with it."""
    with leaves_nothing() as traces:
        start_and_kill(tmp_path, traces)


def start_and_kill(tmp_path: Path, traces: Traces) -> None:
    with (tmp_path / "log").open("w") as log:
        arguments = ("engine", "--run", str(run_file(tmp_path)), "--port", str(free_port()))
        engine = command(*arguments, stderr=log, env={**os.environ, "TMPDIR": str(traces.folder)})
    with engine:
        assert engine.stdout is not None
        line = engine.stdout.readline()
        assert line.startswith("engine ready: http://127.0.0.1:"), (tmp_path / "log").read_text()[-3000:]
        assert "layers=1,3,4" in line
        children = psutil.Process(engine.pid).children(recursive=True)
        assert len(children) == 3  # launcher, scheduler, detokenizer: parts that were spawned bring a resource tracker
        assert len(list(traces.folder.glob("eaglefeed-engine-*"))) == 1
        traces.look(engine.pid)
        engine.send_signal(signal.SIGKILL)
        assert engine.stdout.read() == ""
        engine.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_layers_that_cannot_be_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Exit code 2 within seconds, with the valid range."""
    path = run_file(tmp_path)
    path.write_text(path.read_text().replace("[1, 3, 4]", "[1, 3, 8]"))
    started = time.monotonic()
    engine = command("engine", "--run", str(path), stderr=subprocess.PIPE)
    _, error = engine.communicate(timeout=60)
    assert engine.returncode == 2
    assert "layers 0 to 7" in error
    assert time.monotonic() - started < 30


@pytest.mark.skipif(not (SMOLLM2 / "config.json").exists(), reason="SmolLM2 is not unpacked: scripts/test does it")
def test_prove_passes_for_smollm2() -> None:
    """The verb's JSON: whole, uncached, in chunks too, each layer of a real model within 0.03, verdict pass."""
    prove = command(
        *("prove", "--run", "config/smollm2.toml", "--samples", "10", "--json", "--quiet"),
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    output, _ = prove.communicate(timeout=560)
    result = json.loads(output)
    print(output)
    assert (prove.returncode, result["verdict"]) == (0, "pass"), result["breaches"]
    assert result["rows_equal_tokens"] is True
    assert result["cached_tokens_max"] == 0
    assert [entry["layer"] for entry in result["layers"]] == [1, 14, 26]
    for entry in [*result["layers"], result["final_pre_norm"], result["final_post_norm"]]:
        assert entry["relative_error"] < 0.03
    assert result["chunked_vs_whole"] < 0.02
    assert result["batch_vs_alone"] < 0.02
