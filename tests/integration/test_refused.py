"""What must not be mixed is refused at a worker's start, with the reason and an exit code of its own."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from config import names, nodes
from config.model_identity import run_identity
from config.run import load_run
from eaglefeed.manifest import run_key
from eaglefeed.stores import open_store
from tests.checkpoints import make_checkpoint
from tests.rq_workers import RqWorker, until

WORKERS = {"extract": ("workers.worker.EngineWorker", "extract"), "store": ("storage.worker.StorageWorker", "store.{}")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def node(valkey: str, model: Path, tmp_path: Path) -> dict[str, str]:
    """A node's environment over a directory store."""
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'name = "refused"\n[model]\npath = "{model}"\nlayers = [1, 3, 4]\n')
    return {
        "EAGLEFEED_RUN": str(run_file),
        "EAGLEFEED_NODE": f"n{uuid.uuid4().hex[:8]}",
        "EAGLEFEED_SPOOL": str(tmp_path / "spool"),
        "EAGLEFEED_STORE": str(tmp_path / "store"),
        "EAGLEFEED_ENGINE_URL": "http://127.0.0.1:9",
        "REDIS_URL": f"{valkey.removesuffix('/0')}/5",
        "RQ_REDIS_URL": f"{valkey.removesuffix('/0')}/5",
    }


def started(kind: str, node: dict[str, str], valkey: str, log: Path) -> RqWorker:
    worker_class, queue = WORKERS[kind]
    return RqWorker(valkey, queue.format(node["EAGLEFEED_NODE"]), log, worker_class, node)


@pytest.mark.parametrize("kind", WORKERS)
def test_a_worker_of_another_identity_is_refused(kind: str, node: dict[str, str], valkey: str, tmp_path: Path):
    """A worker whose layers and engine are not the run's ends with status 2 and names the fields that differ."""
    settings = load_run(node["EAGLEFEED_RUN"])
    other = replace(run_identity(settings), layer_ids=(1, 3, 5), engine="sglang 0.4.0")
    open_store(node["EAGLEFEED_STORE"]).create(run_key("refused"), other.to_json())
    with started(kind, node, valkey, tmp_path / "log") as worker:
        assert worker.wait(60) == 2
    assert "layer_ids" in worker.text() and "sglang 0.4.0" in worker.text() and "Traceback" not in worker.text()


@pytest.mark.parametrize("kind", WORKERS)
def test_a_second_node_of_one_name_is_refused(kind: str, node: dict[str, str], valkey: str, tmp_path: Path):
    """While another spool works under the name, a worker ends with status 3 and says what to set."""
    redis = Redis.from_url(node["REDIS_URL"])
    nodes.claim(redis, node["EAGLEFEED_NODE"], "another-spool")
    redis.expire(names.owner_key(node["EAGLEFEED_NODE"]), 600)
    with started(kind, node, valkey, tmp_path / "log") as worker:
        assert worker.wait(60) == 3
    redis.close()
    assert "EAGLEFEED_NODE" in worker.text()


def test_a_worker_waits_for_its_engine_and_says_so(node: dict[str, str], valkey: str, tmp_path: Path):
    """Without an engine nothing is taken; the node says `down` in Redis, and SIGTERM ends the worker at once."""
    redis = Redis.from_url(node["REDIS_URL"])
    with started("extract", node, valkey, tmp_path / "log") as worker:
        key = names.node_key(node["EAGLEFEED_NODE"])
        until(lambda: redis.hget(key, "engine_state") == b"down", 60, "the node says that its engine is down")
        assert b"does not answer" in redis.hget(key, "message")
        worker.process.terminate()
        assert worker.wait(20) == 0
    redis.close()
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0


def test_a_run_name_with_odd_characters_is_refused(tmp_path: Path):
    """A run name never becomes a path: what is not letters, digits, '.', '_', '-' is refused with the rule."""
    for name in ("../../etc", "a b", "ä", ".hidden", "a/b", "", "x" * 65, "a..b", "a\nb"):
        path = tmp_path / "run.toml"
        path.write_text(f'name = "{name.encode("unicode_escape").decode()}"\n[model]\npath = "m"\n', "utf-8")
        with pytest.raises(Exception, match=r"name|TOML"):
            load_run(path)
