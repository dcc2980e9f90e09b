"""The whole system for a chaos run: real servers, engines on a tiny checkpoint, real commands, two of each node."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config import counters
from config.ports import free_port
from tests.chaos.cut_proxy import CutProxy
from tests.chaos.node import RUN, Node, mount_small_disk
from tests.chaos.service import MARK, Service, orphans
from tests.checkpoints import make_checkpoint
from tests.rq_workers import CHECKOUT
from tests.services import BUCKET, Seaweed, Valkey

SHORT_TIMEOUTS = """hang_timeout_seconds = 10
start_timeout_seconds = 180
request_timeout_seconds = 60"""
"""A hang must be noticed many times in one run; recoveries are measured with the defaults instead."""
_RUN_FILE = """name = "{run}"
[model]
path = "{model}"
layers = [1, 3, 4]
[data]
max_length = 1024
batch_tokens = {batch_tokens}
max_queued_batches = 40
[engine]
device = "cpu"
max_prefill_tokens = 2048
max_total_tokens = 8192
{timeouts}
[spool]
max_disk_percent = 90.0
[store]
url = "s3://{bucket}/chaos"
"""


@dataclass
class Stand:
    """Everything of one chaos run; use as a context manager."""

    folder: Path
    num_nodes: int = 2
    extract_workers: int = 1
    batch_tokens: int = 512
    fault: str = ""
    timeouts: str = SHORT_TIMEOUTS
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    nodes: list[Node] = field(default_factory=list)
    producers: list[Service] = field(default_factory=list)
    data: list[Path] = field(default_factory=list)
    stopped_starts: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Stand:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.valkey, self.seaweed = Valkey(self.folder / "valkey"), Seaweed(self.folder / "weed")
        make_checkpoint("llama", self.folder / "model")
        self.run_file = self.folder / "run.toml"
        self.run_file.write_text(
            _RUN_FILE.format(
                run=RUN,
                model=self.folder / "model",
                batch_tokens=self.batch_tokens,
                timeouts=self.timeouts,
                bucket=BUCKET,
            )
        )
        self.valkey.start()
        self.seaweed.start()
        self.redis = Redis.from_url(self.valkey.url, socket_timeout=5)
        self.nodes = [self._node(number) for number in range(self.num_nodes)]
        for service in self.services():
            service.start()
        threading.Thread(target=self._tend, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for node in self.nodes:
            for cable in node.cables:
                cable.mend()
        for service in [*self.producers, *(each for node in self.nodes for each in (*node.extract, node.store))]:
            service.stop()
        for node in self.nodes:
            node.engine.stop()
            for cable in node.cables:
                cable.close()
            if node.is_own_disk:
                subprocess.run(["umount", str(node.spool)], check=False)
        self.seaweed.stop()
        self.valkey.stop()

    def services(self) -> list[Service]:
        return [*self.producers, *(service for node in self.nodes for service in node.services)]

    def produce(self, rows: Sequence[dict[str, Any]]) -> None:
        """One more file of rows and its producer, which is started again until it succeeds."""
        path = self.folder / f"data-{len(self.data)}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.data.append(path)
        self._start_producer([path])

    def empty_redis(self) -> None:
        """FLUSHALL in the middle of everything, then what docs/queue.md says: rebuild, and produce the same again."""
        self.redis.flushall()
        command = [sys.executable, "-m", "eaglefeed.cli", "rebuild", "--run", str(self.run_file), "--quiet"]
        subprocess.run(command, env=self._environment({}), cwd=CHECKOUT, check=True, capture_output=True)
        for producer in self.producers:
            producer.stop()
        self.stopped_starts += sum(producer.num_starts for producer in self.producers)
        self.producers.clear()
        self._start_producer(self.data)

    def counted(self) -> dict[str, int]:
        """The run's counters; {} while Redis is away."""
        with contextlib.suppress(RedisError):
            return counters.read(self.redis, RUN)
        return {}

    def num_in_work(self, counted: dict[str, int]) -> int:
        """Samples that were enqueued and are neither stored, rejected nor dead."""
        return counted.get("unique", 0) - sum(counted.get(name, 0) for name in ("stored", "rejected", "dead"))

    def is_settled(self) -> bool:
        """Whether every producer has succeeded and every unique sample is stored, rejected or dead."""
        counted = self.counted()
        produced = all(each.process and each.process.poll() == 0 for each in self.producers)
        return produced and bool(counted) and self.num_in_work(counted) <= 0

    def jobs_left(self) -> list[str]:
        """Keys of RQ's jobs that Redis still holds, once everything is settled; dead letters aside there are none."""
        patterns = ("rq:job:*", "rq:execution:*", "rq:executions:*", "rq:results:*")
        return [key.decode() for pattern in patterns for key in self.redis.scan_iter(pattern, count=1000)]

    def audit(self) -> tuple[int, dict[str, Any]]:
        """The audit's own command, reading every shard back: its exit code and its JSON."""
        command = [sys.executable, "-m", "eaglefeed.cli", "audit", "--run", str(self.run_file), "--deep", "--json"]
        done = subprocess.run(
            [*command, "--quiet"], env=self._environment({}), cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        return done.returncode, json.loads(done.stdout or "{}")

    def orphans(self) -> list[str]:
        return orphans(self.mark)

    def _start_producer(self, paths: Sequence[Path]) -> None:
        number = len(self.producers)
        command = [sys.executable, "-m", "eaglefeed.cli", "produce", *map(str, paths), "--run", str(self.run_file)]
        command += ["--quiet", "--jobs", "0", "--rejects", str(self.folder / f"rejects-{number}.jsonl")]
        service = Service(
            f"producer-{number}", command, self._environment({}), self.folder / "producer.log", restarts=False
        )
        self.producers.append(service)
        service.start()

    def _node(self, number: int) -> Node:
        name, spool, port = f"node{number}", self.folder / f"spool{number}", free_port()
        spool.mkdir()
        is_own_disk = mount_small_disk(spool)
        cables = [CutProxy(self.valkey.port), CutProxy(self.seaweed.port + 3)]
        url = f"redis://127.0.0.1:{cables[0].port}/0"
        own = {
            "EAGLEFEED_NODE": name,
            "EAGLEFEED_SPOOL": str(spool),
            "EAGLEFEED_ENGINE_URL": f"http://127.0.0.1:{port}",
            "REDIS_URL": url,
            "RQ_REDIS_URL": url,
            "S3_ENDPOINT": f"http://127.0.0.1:{cables[1].port}",
        }
        environment = self._environment(own)
        faulty = {**environment, "EAGLEFEED_TEST_FAULT": self.fault} if self.fault else environment
        log = self.folder / f"{name}.log"
        engine = [sys.executable, "-m", "eaglefeed.cli", "engine", "--run", str(self.run_file), "--port", str(port)]
        return Node(
            name,
            spool,
            Service(f"{name}/engine", engine, faulty, self.folder / f"{name}-engine.log"),
            own["EAGLEFEED_ENGINE_URL"],
            [
                Service(f"{name}/extract{each}", _rq("workers.worker.EngineWorker", "extract"), environment, log)
                for each in range(self.extract_workers)
            ],
            Service(f"{name}/store", _rq("storage.worker.StorageWorker", f"store.{name}"), environment, log),
            cables,
            is_own_disk,
        )

    def _environment(self, own: dict[str, str]) -> dict[str, str]:
        url = self.valkey.url
        shared = {"PYTHONPATH": str(CHECKOUT), "EAGLEFEED_RUN": str(self.run_file), "REDIS_URL": url, MARK: self.mark}
        quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RQ_REDIS_URL": url}
        return {**os.environ, **self.seaweed.environment, **shared, **quiet, **own}

    def _tend(self) -> None:
        while not self._done.wait(0.2):
            for service in self.services():
                if not self._done.is_set():
                    service.tend()


def wait_until(is_true: Any, seconds: float, what: str) -> float:
    """Seconds it took; raises TimeoutError naming ``what``."""
    begun = time.monotonic()
    while not is_true():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)
    return time.monotonic() - begun


def _rq(worker_class: str, queue: str) -> list[str]:
    rq = str(Path(sys.executable).parent / "rq")
    return [rq, "worker", "--worker-class", worker_class, "--serializer", "rq.serializers.JSONSerializer", queue]
