"""How the parts of an engine are started: forked where that is safe, as SGLang wants it everywhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workers.sglang_plugin.settings import CPU_PLATFORM

PROGRAM = """
import multiprocessing, threading
from types import SimpleNamespace
from workers.sglang_plugin.start_method import set_environment

def sglangs_own(server_args):
    multiprocessing.set_start_method("spawn", force=True)

ended = threading.Event()
for _ in range({threads} - 1):
    threading.Thread(target=ended.wait).start()
set_environment(sglangs_own, SimpleNamespace(dp_size={dp_size}))
print(multiprocessing.get_start_method())
ended.set()
"""


@pytest.mark.parametrize(
    ("platform", "dp_size", "threads", "expected"),
    [
        (CPU_PLATFORM, 1, 1, "fork"),
        (CPU_PLATFORM, 1, 2, "spawn"),  # a lock that the other thread holds would never be released in the child
        (CPU_PLATFORM, 2, 1, "spawn"),  # SGLang's controller starts its schedulers from threads
        ("", 1, 1, "spawn"),  # a GPU
    ],
)
def test_parts_are_forked_where_it_is_safe(platform: str, dp_size: int, threads: int, expected: str) -> None:
    """On a CPU, out of a process of one thread, without a data-parallel controller; elsewhere SGLang decides."""
    program = PROGRAM.format(dp_size=dp_size, threads=threads)
    environment = {**os.environ, "SGLANG_PLATFORM": platform}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
