"""A disk that becomes read-only under the spool or the store: said clearly, nothing lost, gone on with afterwards."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from config import counters, names
from config.retries import is_transient
from eaglefeed.errors import EnvironmentFault
from eaglefeed.manifest import manifest_prefix
from eaglefeed.stores import open_store
from storage import jobs, patience
from storage.node import this_node
from tests.read_only_disk import ReadOnly
from tests.rq_workers import RqWorker, until
from tests.storage_home import StorageHome


@pytest.fixture
def run() -> str:
    return f"run-{secrets.token_hex(4)}"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Job functions in this process, of a node whose environment the test sets."""
    monkeypatch.setattr(patience, "LONGEST_PAUSE_SECONDS", 0.5)
    this_node.cache_clear()
    yield monkeypatch
    if this_node.cache_info().currsize:
        jobs.lookahead().close()
        jobs.lookahead.cache_clear()
        this_node().redis.close()
    this_node.cache_clear()


def enter(home: StorageHome, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)


def dumps_of(home: StorageHome) -> list[str]:
    return [name for name in home.waiting() if name.endswith(".dump")]


def num_stored(home: StorageHome) -> int:
    return sum(1 for _ in home.store().list(manifest_prefix(home.run)))


def test_workers_take_nothing_while_their_spool_is_read_only(
    tmp_path: Path, run: str, valkey: str, small_disk: Path, read_only: ReadOnly
) -> None:
    """Both kinds wait in one process, the node says how to mend it, and the waiting batch is stored afterwards."""
    home = StorageHome.make(tmp_path, run, valkey, spool=small_disk / "spool")
    first, second = home.batch([30, 40]), home.batch([50, 60], first=10)
    home.announce(first)
    home.announce(second)
    redis: Redis = home.redis
    key = names.node_key(home.node)
    environment = {**home.environment, "EAGLEFEED_ENGINE_URL": "http://127.0.0.1:9"}
    worker, log = home.start_worker(), home.folder / f"worker-{home.node}.log"
    try:
        home.enqueue(first, home.write_dumps(first))
        until(lambda: num_stored(home) == 1, 60, "the first batch is stored")
        with RqWorker(
            valkey, "extract", tmp_path / "extract.log", "workers.worker.EngineWorker", environment
        ) as extract:
            until(lambda: b"engine" in (redis.hget(key, "message") or b""), 60, "the node waits for its engine")
            dumps = home.write_dumps(second)
            with read_only:
                job_id = home.enqueue(second, dumps)
                for text in (log.read_text, extract.text):
                    until(lambda text=text: "read-only" in text(), 60, "the worker's log says that it is read-only")
                assert "remount,rw" in log.read_text() and "remount,rw" in extract.text()
                until(lambda: b"read-only" in (redis.hget(key, "message") or b""), 10, "the page can say so too")
                assert home.has_job(job_id) and num_stored(home) == 1
                assert len(dumps_of(home)) == 2
            until(lambda: num_stored(home) == 2, 60, "the second batch is stored")
            assert worker.poll() is None and extract.process.poll() is None
        until(lambda: not dumps_of(home), 30, "the spool is empty")
    finally:
        worker.kill()
        worker.wait(20)
    counted = counters.read(redis, run)
    assert (counted["stored"], counted.get("rejected", 0), counted.get("dead", 0)) == (4, 0, 0)
    redis.close()


@pytest.fixture
def entered(tmp_path: Path, run: str, valkey: str, small_disk: Path, here: pytest.MonkeyPatch) -> StorageHome:
    """A node whose spool is on the small disk, and which this process works as."""
    home = StorageHome.make(tmp_path, run, valkey, spool=small_disk / "spool")
    enter(home, here)
    return home


def test_a_job_in_hand_waits_for_its_spool(entered: StorageHome, read_only: ReadOnly) -> None:
    """Read-only before the shard's file is written: the job waits, its dumps lie there, and it is stored afterwards."""
    home, batch = entered, entered.batch([30, 40])
    dumps = home.write_dumps(batch)
    this_node()
    with ThreadPoolExecutor(1) as pool:
        with read_only:
            stored = pool.submit(jobs.store_batch, batch.to_payload(), dumps)
            time.sleep(1.5)
            assert not stored.done() and len(home.waiting()) == 2
        stored.result(60)
    assert num_stored(home) == 1 and home.waiting() == []


def test_a_job_that_cannot_delete_its_dumps_is_run_again(entered: StorageHome, read_only: ReadOnly) -> None:
    """Read-only after the manifest: the worker hands the job back; the samples count once, and the dumps go later."""
    home, batch = entered, entered.batch([30, 40])
    jobs.store_batch(batch.to_payload(), home.write_dumps(batch))
    again = home.write_dumps(batch)
    with read_only, pytest.raises(OSError, match="Read-only") as caught:
        jobs.store_batch(batch.to_payload(), again)
    assert is_transient(caught.value) and len(home.waiting()) == 2
    jobs.store_batch(batch.to_payload(), again)
    assert home.waiting() == [] and counters.read(home.redis, home.run)["stored"] == 2


def test_a_store_that_is_read_only_is_waited_for(
    tmp_path: Path, run: str, valkey: str, small_disk: Path, read_only: ReadOnly, here: pytest.MonkeyPatch
) -> None:
    """The waiting job says why and how to mend it; its dumps stay, and it is stored when the store can be written."""
    home = StorageHome.make(tmp_path, run, valkey, store=str(small_disk / "store"))
    enter(home, here)
    said: list[str] = []
    here.setattr(patience, "on_wait", said.append)
    batch = home.batch([30, 40])
    dumps = home.write_dumps(batch)
    this_node()
    with ThreadPoolExecutor(1) as pool:
        with read_only:
            stored = pool.submit(jobs.store_batch, batch.to_payload(), dumps)
            until(lambda: said, 20, "the job says that it waits")
            assert "read-only" in said[0] and "remount,rw" in said[0]
            assert not stored.done() and len(dumps_of(home)) == 2
        stored.result(60)
    assert num_stored(home) == 1 and home.waiting() == []
    assert [info for info in home.store().unfinished("")] == []


def test_a_node_does_not_begin_on_a_read_only_disk(
    tmp_path: Path, run: str, valkey: str, small_disk: Path, read_only: ReadOnly
) -> None:
    """A store or spool that is read-only from the start is named, with the way out, before anything is taken."""
    home = StorageHome.make(tmp_path, run, valkey, spool=small_disk / "spool")
    store = open_store(str(small_disk / "store"))
    store.check()
    with read_only:
        with pytest.raises(EnvironmentFault, match="remount,rw"):
            store.check()
        log = home.folder / "log"
        assert home.start_worker("--burst", log=log).wait(60) == 3
        assert "read-only file system (tmpfs at" in log.read_text() and "Traceback" not in log.read_text()
