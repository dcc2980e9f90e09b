"""The network is away: packets to Redis and the store vanish, nobody refuses. Everyone waits, and nothing is lost.

Ten seconds by default; a whole minute, after which old connections stay silent for ever, with EAGLEFEED_LONG_TESTS=1.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from config import counters, names, queues
from eaglefeed.manifest import manifest_prefix
from storage import ledger
from tests import chat_templates
from tests.chaos.cut_proxy import Cut, CutProxy
from tests.rq_workers import CHECKOUT, RqWorker, until
from tests.services import BUCKET
from tests.storage_home import StorageHome

IS_LONG = bool(os.environ.get("EAGLEFEED_LONG_TESTS"))
AWAY: tuple[float, Cut] = (60.0, "lost") if IS_LONG else (10.0, "hanging")
BACK_SECONDS = 150.0 if IS_LONG else 60.0
NUM_BATCHES = 60
LENGTHS = (40, 25, 60)


@pytest.fixture
def cables(valkey: str, seaweed: dict[str, str]) -> Iterator[dict[str, CutProxy]]:
    """A cable to Redis and one to the store."""
    ports = {"redis": urlsplit(valkey).port, "store": urlsplit(seaweed["S3_ENDPOINT"]).port}
    made = {name: CutProxy(int(port or 0)) for name, port in ports.items()}
    yield made
    for cable in made.values():
        cable.mend()
        cable.close()


@pytest.fixture
def home(
    tmp_path: Path,
    valkey: str,
    seaweed: dict[str, str],
    cables: dict[str, CutProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> StorageHome:
    """A node whose processes reach Redis and the store over the cables; this test itself reaches them directly."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    made = StorageHome.make(tmp_path, f"run-{secrets.token_hex(4)}", valkey, f"s3://{BUCKET}/away")
    url = f"redis://127.0.0.1:{cables['redis'].port}/0"
    own = {"REDIS_URL": url, "RQ_REDIS_URL": url, "S3_ENDPOINT": f"http://127.0.0.1:{cables['store'].port}"}
    return replace(made, environment={**made.environment, **own})


def go_away(cables: dict[str, CutProxy]) -> None:
    for cable in cables.values():
        cable.cut(AWAY[1])


def come_back(cables: dict[str, CutProxy]) -> None:
    for cable in cables.values():
        cable.mend()


def num_stored(home: StorageHome) -> int:
    return sum(1 for _ in home.store().list(manifest_prefix(home.run)))


def test_workers_wait_for_the_network_and_each_sample_is_stored_once(
    home: StorageHome, cables: dict[str, CutProxy], tmp_path: Path
) -> None:
    """Batches in the queue and in hand: the same processes go on, all is stored, and the spool is empty.

    The extract worker waits for its engine meanwhile, and says so in Redis again as soon as Redis can hear it.
    """
    batches = [home.batch(LENGTHS, first=10 * number) for number in range(NUM_BATCHES)]
    for batch in batches:
        home.announce(batch)
        home.enqueue(batch, home.write_dumps(batch))
    redis, key = home.redis, names.node_key(home.node)
    environment = {**home.environment, "EAGLEFEED_ENGINE_URL": "http://127.0.0.1:9"}
    url, log = environment["REDIS_URL"], tmp_path / "extract.log"
    with RqWorker(url, "extract", log, "workers.worker.EngineWorker", environment) as extract:
        until(lambda: redis.hget(key, "engine_state") == b"down", 60, "the node says that its engine is down")
        worker = home.start_worker()
        try:
            until(lambda: num_stored(home) >= 2, 60, "the first batches are stored")
            go_away(cables)
            at_cut = num_stored(home)
            assert at_cut < NUM_BATCHES, "the worker was done before the network went; give it more batches"
            time.sleep(AWAY[0])
            assert worker.poll() is None and extract.process.poll() is None
            assert num_stored(home) <= at_cut + 1
            redis.delete(key)
            come_back(cables)
            heard = until(lambda: redis.hget(key, "engine_state") == b"down", BACK_SECONDS, "the node is heard again")
            seconds = until(lambda: num_stored(home) == NUM_BATCHES, BACK_SECONDS, "every batch is stored")
            until(lambda: not home.waiting(), 30, "the spool is empty")
            assert worker.poll() is None and extract.process.poll() is None, "a worker ended, and none starts it again"
        finally:
            worker.kill()
            worker.wait(20)
    print(f"network away for {AWAY}: heard {heard:.1f} s and all stored {heard + seconds:.1f} s after it was back")
    counted = counters.read(redis, home.run)
    total = NUM_BATCHES * len(LENGTHS)
    assert (counted["stored"], counted["unique"], counted.get("dead", 0)) == (total, total, 0)
    ids = [sample.id for manifest in ledger.read_manifests(home.store(), home.run) for sample in manifest.samples]
    assert len(ids) == len(set(ids)) == total
    redis.close()


def test_a_producer_goes_on_where_it_was(home: StorageHome, cables: dict[str, CutProxy], tmp_path: Path) -> None:
    """It waits for room in the queue when the network goes; when it is back, it enqueues the rest, each sample once."""
    redis, run_file = home.redis, Path(home.run_file)
    run_file.write_text(run_file.read_text() + "[data]\nmax_length = 64\nbatch_tokens = 64\nmax_queued_batches = 40\n")
    chat_templates.make_tokenizer("chatml").save_pretrained(home.folder / "model")
    write_rows(tmp_path / "data.jsonl", 300)
    assert not redis.llen("rq:queue:extract"), "another test left batches in the queue"
    command = [sys.executable, "-m", "eaglefeed.cli", "produce", str(tmp_path / "data.jsonl"), "--run", str(run_file)]
    command += ["--jobs", "0", "--json", "--rejects", str(tmp_path / "rejects.jsonl")]
    with subprocess.Popen(
        command, cwd=CHECKOUT, env={**os.environ, **home.environment}, stdout=subprocess.PIPE, text=True
    ) as producer:
        until(lambda: redis.llen("rq:queue:extract") == 40, 60, "the queue is full")
        go_away(cables)
        time.sleep(AWAY[0])
        assert producer.poll() is None
        redis.ltrim("rq:queue:extract", 1, 0)  # the nodes took them all meanwhile
        come_back(cables)
        drain = time.monotonic() + BACK_SECONDS
        while producer.poll() is None and time.monotonic() < drain:
            redis.ltrim("rq:queue:extract", 1, 0)
            time.sleep(0.2)
        output, _ = producer.communicate(timeout=20)
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert (producer.returncode, summary["unique"], summary["duplicate"]) == (0, 300, 0)
    assert counters.read(redis, home.run)["unique"] == redis.scard(names.known_key(home.run)) == 300
    redis.delete("rq:queue:extract")
    redis.close()


def write_rows(path: Path, number: int) -> None:
    tokens = [[4 + place % 90, 4 + place // 90, *range(5, 35)] for place in range(number)]
    rows = [{"input_ids": ids, "loss_mask": [0] * 16 + [1] * 16} for ids in tokens]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.timeout(60)
def test_a_lost_connection_to_redis_is_noticed(
    valkey: str, cables: dict[str, CutProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that a firewall forgot answers nothing, for ever: it is given up after a while, and made anew."""
    monkeypatch.setattr(queues, "ANSWER_SECONDS", 1.0)
    redis: Redis = queues.connect(f"redis://127.0.0.1:{cables['redis'].port}/0", retries=0)
    assert redis.ping()
    cables["redis"].cut("lost")
    begun = time.monotonic()
    with pytest.raises(RedisTimeoutError):
        redis.ping()
    assert time.monotonic() - begun < 10
    cables["redis"].mend()
    patient = queues.connect(f"redis://127.0.0.1:{cables['redis'].port}/0")
    assert patient.ping()
    cables["redis"].cut("lost")
    cables["redis"].mend()
    assert patient.ping(), "retried over a new connection"
    redis.close()
    patient.close()
