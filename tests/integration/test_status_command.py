"""`eaglefeed status` by the real command: a screen, one JSON, a watch that ends with Ctrl-C, and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from tests.scenes import Scene, fail_jobs, play

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def url(valkey: str) -> str:
    address = valkey.rsplit("/", 1)[0] + "/6"
    Redis.from_url(address).flushdb()
    return address


def status(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eaglefeed.cli", "status", "--redis", url, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


def test_a_run_in_progress(url: str) -> None:
    """The page's numbers as plain text, without colour in a pipe, exit code 0."""
    play(Redis.from_url(url), Scene(working=2))
    shown = status(url)
    assert shown.returncode == 0, shown.stderr
    for expected in ("8,280 of 24,000 samples stored (34.5 %)", "60 min", "<- narrow", "gpu-01", "too-long 46"):
        assert expected in shown.stdout
    assert "\x1b" not in shown.stdout


def test_one_json_for_scripts(url: str) -> None:
    """The same as one object."""
    play(Redis.from_url(url), Scene())
    record = json.loads(status(url, "--json").stdout)
    assert record["runs"][0]["counts"]["unique"] == 24_000
    assert record["runs"][0]["percent"] == 34.5


def test_something_wrong_is_exit_code_1(url: str) -> None:
    """A stalled run, and dead letters, each."""
    redis = Redis.from_url(url)
    play(redis, Scene(quiet_minutes=9, rejected_per_minute=0))
    assert status(url).returncode == 1
    redis.flushdb()
    play(redis, Scene())
    fail_jobs(redis, 1)
    shown = status(url)
    assert shown.returncode == 1
    assert "1 dead letter:" in shown.stdout


def test_an_empty_redis_says_what_to_do(url: str) -> None:
    """No run is no error."""
    shown = status(url)
    assert shown.returncode == 0
    assert "eaglefeed produce" in shown.stdout


def test_a_run_that_is_not_there(url: str) -> None:
    """--name of an unknown run is a usage error that names those there are."""
    play(Redis.from_url(url), Scene())
    shown = status(url, "--name", "qwen3-8b")
    assert shown.returncode == 2
    assert "qwen3-8b-sharegpt" in shown.stderr


def test_watch_follows_and_ends_with_ctrl_c(url: str) -> None:
    """One JSON a line as long as it runs; Ctrl-C ends it with 130."""
    play(Redis.from_url(url), Scene())
    command = [
        sys.executable,
        "-m",
        "eaglefeed.cli",
        "status",
        "--redis",
        url,
        "--watch",
        "--json",
        "--interval",
        "0.2",
    ]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        taken = [json.loads(watching.stdout.readline())["taken_at"] for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)
    assert taken == sorted(set(taken))
    assert watching.returncode == 130
