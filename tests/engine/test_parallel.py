"""Tensor and data parallel engines on two cores: who copies, who writes, and that the states are the same (issue 3)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from config.model_identity import run_identity
from config.ports import free_port
from tests.engine.engines import Served, leaves_nothing, prompts, served, tiny_settings
from workers.engine import Engine
from workers.engine_command import EngineProcesses
from workers.engine_launch import engine_launch
from workers.evidence import gather
from workers.startup_proof import prove_engine
from workers.supervisor import Supervisor
from workers.verdict import judge

SAMPLES = prompts([1, 30, 200, 300, 64, 65, 500, 77], seed=8)

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores, and this machine gives one"
)


@needs_two_cores
def test_two_replicas(tmp_path: Path) -> None:
    """Each has its own port and its own folder of dumps; all are whole; when one dies, both are started again."""
    settings = tiny_settings("llama", tmp_path, engine={"replicas": 2, "request_timeout_seconds": 120})
    identity, spool, port = run_identity(settings), Path(settings.spool.path), free_port(1)
    urls = [f"http://127.0.0.1:{port + replica}" for replica in range(2)]
    launches = [engine_launch(settings, identity, spool, "127.0.0.1", port + replica, replica) for replica in range(2)]
    both = Served(settings, identity, Engine(urls, 120))
    ready = 0

    def use(processes: EngineProcesses) -> None:
        nonlocal ready
        ready += 1
        traces.look()
        prove_engine(both.engine, identity, spool)
        answers = both.ask(SAMPLES)
        assert sorted(path.parent.name for path in both.folder.rglob("*.dump")) == ["r0"] * 4 + ["r1"] * 4
        assert len({answer.receipt["process"] for answer in answers}) == 2
        for answer in answers:
            both.prove(answer, SAMPLES)
        if ready == 2:
            raise KeyboardInterrupt
        os.killpg(processes.running[1].pid, signal.SIGKILL)

    with leaves_nothing() as traces, pytest.raises(KeyboardInterrupt):
        Supervisor(lambda: EngineProcesses(launches), urls, identity, spool, 300, 60, use).run()
    assert ready == 2
    assert not list(both.folder.rglob("*.dump*"))


@needs_two_cores
@pytest.mark.parametrize(("setting", "num_writers"), [("tensor_parallel", 1), ("data_parallel", 2)])
def test_two_ranks(setting: str, num_writers: int, tmp_path: Path) -> None:
    """TP 2 writes from rank 0 alone, DP 2 from both replicas; dumps are whole, pass ``prove``, and nothing is left."""
    with leaves_nothing() as traces, served(tiny_settings("llama", tmp_path, engine={setting: 2})) as engine:
        traces.look()
        writers = set()
        for _ in range(2):
            for answer in engine.ask(SAMPLES):
                engine.prove(answer, SAMPLES)
                writers.add(answer.receipt["process"])
        assert len(writers) == num_writers
        result = judge(gather(engine.settings, engine.identity, engine.engine, 6))
        assert result["verdict"] == "pass", result["breaches"]
        assert engine.leftovers() == []
