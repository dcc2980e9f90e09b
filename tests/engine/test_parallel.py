"""Tensor and data parallel engines on two cores: who copies, who writes, and that the states are the same (issue 3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.engines import prompts, served, tiny_settings
from workers.evidence import gather
from workers.verdict import judge

SAMPLES = prompts([1, 30, 200, 300, 64, 65, 500, 77], seed=8)

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores, and this machine gives one"
)


@needs_two_cores
@pytest.mark.parametrize(("setting", "num_writers"), [("tensor_parallel", 1), ("data_parallel", 2)])
def test_two_ranks(setting: str, num_writers: int, tmp_path: Path) -> None:
    """TP 2 writes from rank 0 alone, DP 2 from both replicas; dumps are whole and pass ``prove``."""
    with served(tiny_settings("llama", tmp_path, engine={setting: 2})) as engine:
        writers = set()
        for _ in range(2):
            for answer in engine.ask(SAMPLES):
                engine.prove(answer, SAMPLES)
                writers.add(answer.receipt["process"])
        assert len(writers) == num_writers
        result = judge(gather(engine.settings, engine.identity, engine.engine, 6))
        assert result["verdict"] == "pass", result["breaches"]
        assert engine.leftovers() == []
