"""A node's storage side as it lives on a machine: run file, model folder, spool, store, queue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from redis import Redis
from rq.job import Job

from config import names, queues
from config.model_identity import run_identity
from config.run import RunSettings, load_run
from eaglefeed.dump import write_dump
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import RejectedSampleRecord
from eaglefeed.records import Batch, Sample
from eaglefeed.stores import Store
from storage.node import store_of
from tests.runs import VOCABULARY, make_dump, make_sample

CHECKOUT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class StorageHome:
    """One node of one run.

    Attributes:
        environment: what its processes are started with, beside what they inherit.
    """

    folder: Path
    run: str
    node: str
    redis_url: str
    environment: dict[str, str]

    @classmethod
    def make(
        cls,
        folder: Path,
        run: str,
        redis_url: str,
        store: str | None = None,
        node: str = "n1",
        hidden_size: int = 64,
        store_settings: str = "",
        spool: Path | None = None,
        spool_settings: str = "",
    ) -> StorageHome:
        """Write the run file; ``*_settings`` are lines of TOML."""
        (folder / "model").mkdir(parents=True, exist_ok=True)
        config = {"num_hidden_layers": 12, "hidden_size": hidden_size, "vocab_size": VOCABULARY}
        (folder / "model/config.json").write_text(json.dumps(config))
        path = folder / f"{node}.toml"
        path.write_text(
            f'name = "{run}"\n[model]\npath = "{folder}/model"\n'
            f'[spool]\npath = "{spool or folder / ("spool-" + node)}"\nmax_bytes = 1_000_000_000\n'
            f"max_disk_percent = 95.0\n{spool_settings}\n"
            f'[store]\nurl = "{store or folder / "store"}"\nencode_threads = 1\n{store_settings}\n'
        )
        variables = {
            "EAGLEFEED_RUN": str(path),
            "EAGLEFEED_NODE": f"{run}.{node}",
            "REDIS_URL": redis_url,
            "RQ_REDIS_URL": redis_url,
            "PYTHONPATH": str(CHECKOUT),
        }
        home = cls(folder, run, f"{run}.{node}", redis_url, variables)
        home.spool_folder.mkdir(parents=True, exist_ok=True)
        return home

    @property
    def run_file(self) -> str:
        return self.environment["EAGLEFEED_RUN"]

    @property
    def settings(self) -> RunSettings:
        return load_run(self.run_file)

    @property
    def identity(self) -> RunIdentity:
        return run_identity(self.settings)

    @property
    def spool_folder(self) -> Path:
        return Path(self.settings.spool.path) / self.run

    @property
    def redis(self) -> Redis:
        return Redis.from_url(self.redis_url)

    def store(self) -> Store:
        return store_of(self.settings)

    def waiting(self) -> list[str]:
        """What lies in the run's folder of the spool."""
        return sorted(path.name for path in self.spool_folder.iterdir())

    def batch(self, lengths: Sequence[int], first: int = 0) -> Batch:
        return Batch(self.run, tuple(make_sample(first + number, length) for number, length in enumerate(lengths)))

    def announce(self, batch: Batch) -> None:
        """What the producer does in Redis when it enqueues a batch."""
        redis = self.redis
        redis.sadd(names.known_key(self.run), *(bytes.fromhex(sample.id) for sample in batch.samples))
        redis.hincrby(names.count_key(self.run), "unique", len(batch.samples))
        redis.hincrby(names.count_key(self.run), "batches", 1)
        redis.close()

    def write_dumps(
        self, batch: Batch, samples: Sequence[Sample] | None = None, replica: int | None = None
    ) -> dict[str, str]:
        """The dumps of the batch's samples in the spool, as the engine leaves them: sample id → name in the folder."""
        dumps, folder = {}, "" if replica is None else f"{names.replica_folder(replica)}/"
        (self.spool_folder / folder).mkdir(exist_ok=True)
        for sample in batch.samples if samples is None else samples:
            name = f"{folder}{batch.id}-{sample.id}-{os.urandom(4).hex()}.dump"
            dump = make_dump(self.identity, batch.id, sample)
            write_dump(self.spool_folder / name, dump.header, dump.token_ids, dump.positions, dump.states)
            dumps[sample.id] = name
        return dumps

    def enqueue(self, batch: Batch, dumps: dict[str, str], rejected: Sequence[RejectedSampleRecord] = ()) -> str:
        """What the worker does when it hands over; the job's id."""
        redis = self.redis
        job = queues.store_queue(redis, self.node).enqueue_call(
            names.STORE_JOB,
            kwargs={
                "payload": batch.to_payload(),
                "dumps": dumps,
                "rejected": [asdict(record) for record in rejected],
                "engine": {},
            },
            job_id=f"store-{batch.id}",
            timeout=-1,
            result_ttl=queues.RESULT_TTL_SECONDS,
            failure_ttl=queues.FAILURE_TTL_SECONDS,
        )
        redis.close()
        return str(job.id)

    def has_job(self, job_id: str) -> bool:
        redis = self.redis
        try:
            return bool(Job.exists(job_id, connection=redis))
        finally:
            redis.close()

    def start_worker(self, *arguments: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """A real ``rq worker`` of this node's store queue."""
        command = [
            str(Path(sys.executable).parent / "rq"),
            "worker",
            "--worker-class",
            "storage.worker.StorageWorker",
            "--serializer",
            "rq.serializers.JSONSerializer",
            *arguments,
            names.store_queue(self.node),
        ]
        with (log or self.folder / f"worker-{self.node}.log").open("ab") as file:
            return subprocess.Popen(
                command, cwd=CHECKOUT, env={**os.environ, **self.environment}, stdout=file, stderr=file
            )

    def eaglefeed(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``eaglefeed VERB --run … arguments`` to its end."""
        verb, *rest = arguments
        command = [sys.executable, "-m", "eaglefeed.cli", verb, "--run", self.run_file, *rest]
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
