"""The short form of the chaos run, with a fixed seed; the long one is `scripts/chaos`."""

from __future__ import annotations

import subprocess
import sys

from tests.rq_workers import CHECKOUT


def test_a_short_chaos_run_stores_every_sample_once():
    """Each kind of fault on the real stack: every sample stored once, every shard whole, nothing left over."""
    command = [sys.executable, "-m", "tests.chaos.run", "--samples", "150", "--faults", "12", "--seed", "7"]
    command += ["--nodes", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=560, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "all holds" in done.stdout and "faults: 12 of 12 done" in done.stdout
