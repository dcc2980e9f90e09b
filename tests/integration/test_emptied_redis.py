"""Redis is emptied while a batch is between two steps: its samples are enqueued again and stored once all the same.

What no check can rule out is a manifest that reaches the store after a second producer has looked there: then two
batches hold the same samples, the audit says so, and every reader takes the same copy.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

import eaglefeed
from config import counters, ending, names, queues
from eaglefeed.errors import DumpsSpoilt, StoreUnavailable
from eaglefeed.manifest import Manifest, manifest_prefix, shard_key
from eaglefeed.progress import Progress
from eaglefeed.records import Batch
from producer.dedup import seed_from_store
from producer.enqueue import Enqueuer
from storage import jobs, ledger, patience
from storage.index import build_index, write_index
from storage.node import this_node
from storage.worker import StorageWorker
from tests.storage_home import StorageHome

DATABASE = 9


@pytest.fixture
def home(tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageHome]:
    """A node, its job functions in this process, and a Redis database that may be emptied."""
    url = f"{valkey.removesuffix('/0')}/{DATABASE}"
    made = StorageHome.make(tmp_path, f"run-{secrets.token_hex(4)}", url)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.05)
    this_node.cache_clear()
    made.redis.flushdb()
    yield made
    jobs.lookahead().close()
    jobs.lookahead.cache_clear()
    this_node().redis.close()
    this_node.cache_clear()


@pytest.fixture
def running(home: StorageHome, monkeypatch: pytest.MonkeyPatch) -> Callable[[Batch], dict[str, str]]:
    """Puts a batch where a worker has just begun to store it: this process is that worker. Answers its dumps."""

    def begin(batch: Batch) -> dict[str, str]:
        home.announce(batch)
        dumps = home.write_dumps(batch)
        job_id = home.enqueue(batch, dumps)
        home.redis.lrem(queues.store_queue(home.redis, home.node).key, 0, job_id)  # type: ignore[arg-type]
        job = Job.fetch(job_id, connection=home.redis, serializer=JSONSerializer)
        monkeypatch.setattr(ending, "get_current_job", lambda: job)
        return dumps

    return begin


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """``action`` happens while the manifest is on its way: after the last look at Redis, before it is in the store."""
    publish = ledger.publish

    def slowly(*arguments: Any) -> Manifest:
        monkeypatch.setattr(ledger, "publish", publish)
        action()
        return publish(*arguments)

    monkeypatch.setattr(ledger, "publish", slowly)


def produce_again(home: StorageHome, batch: Batch, others: Batch) -> list[str]:
    """What `rebuild` and the same `produce` do, in batches of another mix than the first time; who was enqueued."""
    redis = home.redis
    seed_from_store(redis, home.store(), home.run)
    samples = [*others.samples, *batch.samples]
    claim = Enqueuer(redis, home.run, 100).enqueue(samples)
    redis.close()
    return [sample.id for sample in claim.enqueued]


def test_a_batch_whose_manifest_was_on_its_way_is_known_again(
    home: StorageHome, running: Callable[[Batch], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUSHALL during the commit: the storage worker teaches Redis its batch, and nobody enqueues its samples again."""
    batch, others = home.batch([30, 40]), home.batch([50], first=10)
    dumps = running(batch)
    meanwhile(monkeypatch, home.redis.flushdb)
    jobs.store_batch(batch.to_payload(), dumps)
    counted = counters.read(home.redis, home.run)
    assert (counted["unique"], counted["stored"], counted["batches"]) == (2, 2, 1)
    assert produce_again(home, batch, others) == [sample.id for sample in others.samples]
    counted = counters.read(home.redis, home.run)
    assert (counted["unique"], counted["stored"]) == (3, 2)
    assert home.waiting() == []


def test_a_commit_that_waits_for_the_store_looks_at_redis_again(
    home: StorageHome, running: Callable[[Batch], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away at the commit and Redis is emptied before it is back: nothing is committed, dumps are gone."""
    batch = home.batch([30, 40])
    dumps = running(batch)

    def go_away() -> None:
        home.redis.flushdb()
        raise StoreUnavailable("away")

    meanwhile(monkeypatch, go_away)
    with pytest.raises(ending.JobForgotten):
        jobs.store_batch(batch.to_payload(), dumps)
    assert not list(home.store().list(manifest_prefix(home.run))) and home.waiting() == []


def test_samples_that_were_stored_twice_are_read_once(
    home: StorageHome,
    running: Callable[[Batch], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Emptied and produced again while a manifest is on its way: worker and audit tell, readers take one copy."""
    batch, others = home.batch([30, 40]), home.batch([50], first=10)
    dumps = running(batch)

    def lose_and_produce() -> None:
        home.redis.flushdb()
        assert len(produce_again(home, batch, others)) == 3

    meanwhile(monkeypatch, lose_and_produce)
    jobs.store_batch(batch.to_payload(), dumps)
    assert "2 of its samples were enqueued again" in caplog.text
    second = Batch(home.run, (*others.samples, *batch.samples))
    monkeypatch.setattr(ending, "get_current_job", lambda: None)
    jobs.store_batch(second.to_payload(), home.write_dumps(second))
    audit = home.eaglefeed("audit", "--deep", "--json", "--quiet")
    report = json.loads(audit.stdout)
    assert (audit.returncode, report["stored"], report["missing"], report["duplicate"]) == (1, 3, 0, 2)
    read_from_manifests = opened(home)
    with Progress("index", quiet=True) as progress:
        index, _ = build_index(home.store(), home.run, progress)
    write_index(home.store(), index)
    assert opened(home) == read_from_manifests
    ids = [sample.id for sample in second.samples]
    assert sorted(read_from_manifests) == sorted(ids) and len(index) == 3
    first_copy = shard_key(home.run, min(batch.id, second.id))
    assert {read_from_manifests[sample.id][0] for sample in batch.samples} == {first_copy}


def opened(home: StorageHome) -> dict[str, tuple[str, int]]:
    """Each sample that a trainer gets, with its shard and number of tokens."""
    run = eaglefeed.open(str(home.folder / "store" / home.run))
    found = {}
    for number in range(len(run)):
        row = run._row(number)
        shard = run.index.shard_key(int(run.index.shards[row]))
        found[run.sample_id(number)] = (shard, len(run[number]["token_ids"]))
    assert len(found) == len(run)
    return found


def test_nothing_is_handed_on_that_redis_has_forgotten(
    home: StorageHome, running: Callable[[Batch], dict[str, str]]
) -> None:
    """Emptied between the look and the step: the transaction does not happen, and no store job is in the queue."""
    batch = home.batch([30, 40])
    running(batch)
    redis, other = home.redis, home.redis
    job = ending.get_current_job()

    def fill(pipe: Any) -> None:
        other.flushdb()
        queues.enqueue_extract(queues.extract_queue(redis), batch.to_payload(), pipe)

    with pytest.raises(ending.JobForgotten):
        ending.hand_on(redis, job, fill)
    assert redis.keys("rq:*") == []


def test_a_heartbeat_between_look_and_step_does_not_keep_a_batch_from_going_on(
    home: StorageHome, running: Callable[[Batch], dict[str, str]]
) -> None:
    """The running job's record changes while it is watched: the step is tried again, and done once."""
    batch = home.batch([30, 40])
    running(batch)
    redis: Redis = home.redis
    job = ending.get_current_job()
    assert job is not None
    beats = iter(range(2))

    def fill(pipe: Any) -> None:
        if next(beats, None) is not None:
            home.redis.hset(job.key, "last_heartbeat", secrets.token_hex(4))
        pipe.rpush("handed-on", batch.id)

    ending.hand_on(redis, job, fill)
    assert redis.lrange("handed-on", 0, -1) == [batch.id.encode()]


def test_spoilt_dumps_of_a_forgotten_batch_are_not_extracted_again(
    home: StorageHome, running: Callable[[Batch], dict[str, str]]
) -> None:
    """A storage worker sends a batch back to extraction only while Redis knows it: else a producer does."""
    batch = home.batch([30, 40])
    running(batch)
    redis = home.redis
    job = Job.fetch(f"store-{batch.id}", connection=redis, serializer=JSONSerializer)
    worker = StorageWorker([queues.store_queue(redis, home.node)], connection=redis, serializer=JSONSerializer)
    redis.flushdb()
    assert worker.recover(job, DumpsSpoilt("gone"))
    assert not redis.exists(f"rq:queue:{names.EXTRACT_QUEUE}") and not redis.exists(job.key)
