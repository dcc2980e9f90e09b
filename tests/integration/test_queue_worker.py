"""The worker base class under the real ``rq worker`` and valkey-server: kills, signals, foreign jobs, outages."""

from __future__ import annotations

import json
import pickle
import signal
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from rq.job import Callback
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from config import reaper
from tests.rq_workers import RqWorker, enqueue, lines, until
from tests.services import Valkey


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    client = Redis.from_url(valkey)
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    return f"queue-{uuid.uuid4().hex[:8]}"


def dead(redis: Redis, queue: str) -> list[str]:
    registry = FailedJobRegistry(queue=Queue(queue, connection=redis, serializer=JSONSerializer))
    return registry.get_job_ids(cleanup=False)


def test_a_killed_workers_job_is_run_again_within_30_seconds(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """After SIGKILL in the middle of a job, another worker runs it within 30 s, with default settings."""
    path = tmp_path / "notes"
    enqueue(redis, name, "work", {"path": str(path), "seconds": 60}, f"{name}-job")
    with RqWorker(valkey, name, tmp_path / "a") as first, RqWorker(valkey, name, tmp_path / "b") as second:
        until(lambda: len(lines(path)) == 1, 30, "the job begins")
        (first if int(lines(path)[0].split()[2]) == first.process.pid else second).kill()
        seconds = until(lambda: len(lines(path)) == 2, 30, "the job runs again")
    print(f"worker killed: its job runs again after {seconds:.1f} s")
    assert lines(path)[0].split()[2] != lines(path)[1].split()[2]


def test_a_long_live_job_is_never_taken_for_dead(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """A job longer than its heartbeat's time to live runs once, though reapers look for it all the while."""
    path = tmp_path / "notes"
    enqueue(redis, name, "work", {"path": str(path), "seconds": 28}, f"{name}-job")
    with RqWorker(valkey, name, tmp_path / "a"), RqWorker(valkey, name, tmp_path / "b"):
        until(lambda: len(lines(path)) == 2, 50, "the job ends")
        until(lambda: not redis.exists(f"rq:job:{name}-job"), 5, "the job is forgotten")
    assert [line.split()[0] for line in lines(path)] == ["begin", "end"]


def test_a_job_between_queue_and_worker_is_found(redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch):
    """A job that was taken and never begun goes back to its queue."""
    monkeypatch.setattr(reaper, "TAKEN_SECONDS", -1)
    enqueue(redis, name, "work", {}, f"{name}-job")
    queue = Queue(name, connection=redis, serializer=JSONSerializer)
    redis.lmove(queue.key, queue.intermediate_queue_key)
    found = []
    for _ in range(2):
        redis.delete(f"eaglefeed:reaper:{name}")
        found += reaper.reap(redis, queue)
    assert found == [f"{name}-job"] and redis.llen(queue.key) == 1 and not redis.llen(queue.intermediate_queue_key)


def test_clocks_do_not_decide_who_is_dead(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """A node whose clock is far ahead does not take a live job: only Redis's clock is asked."""
    path = tmp_path / "notes"
    enqueue(redis, name, "work", {"path": str(path), "seconds": 4}, f"{name}-job")
    with RqWorker(valkey, name, tmp_path / "a"):
        until(lambda: len(lines(path)) == 1, 30, "the job begins")
        registry = f"rq:wip:{name}"
        for entry in redis.zrange(registry, 0, -1):
            redis.zadd(registry, {entry: 1.0})  # expired by hours, as another clock sees it
        redis.delete(f"eaglefeed:reaper:{name}")
        assert reaper.reap(redis, Queue(name, connection=redis, serializer=JSONSerializer)) == []
        until(lambda: len(lines(path)) == 2, 20, "the job ends")


def test_the_first_signal_lets_the_job_end(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """SIGTERM: the running job is finished, no other one begun."""
    path = tmp_path / "notes"
    for number in range(2):
        enqueue(redis, name, "work", {"path": str(path), "seconds": 2}, f"{name}-{number}")
    with RqWorker(valkey, name, tmp_path / "a") as worker:
        until(lambda: len(lines(path)) == 1, 30, "the job begins")
        worker.kill(signal.SIGTERM)
        assert worker.wait(15) == 0
    assert [line.split()[0] for line in lines(path)] == ["begin", "end"]
    assert redis.llen(f"rq:queue:{name}") == 1


def test_the_second_signal_hands_the_job_back_at_once(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """A second SIGTERM: the job is at the head of its queue when the worker has ended, within seconds."""
    path = tmp_path / "notes"
    for number in range(2):
        enqueue(redis, name, "work", {"path": str(path), "seconds": 60}, f"{name}-{number}")
    with RqWorker(valkey, name, tmp_path / "a") as worker:
        until(lambda: len(lines(path)) == 1, 30, "the job begins")
        worker.kill(signal.SIGTERM)
        with pytest.raises(Exception, match="timed out"):
            worker.process.wait(1.3)
        worker.kill(signal.SIGTERM)
        worker.wait(10)
    assert redis.lrange(f"rq:queue:{name}", 0, -1) == [f"{name}-0".encode(), f"{name}-1".encode()]
    assert not redis.zcard(f"rq:wip:{name}") and redis.hget(f"rq:job:{name}-0", "status") == b"queued"


def test_foreign_jobs_become_dead_letters_and_nothing_of_them_runs(
    redis: Redis, valkey: str, name: str, tmp_path: Path
):
    """Not listed, pickled, with callbacks, too large or damaged: each ends as a dead letter, and the next job runs."""
    path, evil = tmp_path / "notes", tmp_path / "evil"
    enqueue(redis, name, "not_listed", {"path": str(evil)}, f"{name}-unlisted")
    enqueue(redis, name, "fail_for_good", {}, f"{name}-callback", on_failure=Callback("tests.queue_jobs.not_listed"))
    for job in ("pickled", "bomb", "broken", "positional"):
        enqueue(redis, name, "work", {"path": str(evil)}, f"{name}-{job}")
    pickled = pickle.dumps(("tests.queue_jobs.work", None, (), {"payload": {"path": str(evil), "batch_id": "x"}}))
    redis.hset(f"rq:job:{name}-pickled", "data", zlib.compress(pickled))
    packer = zlib.compressobj(9)
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(600)), packer.flush()])
    redis.hset(f"rq:job:{name}-bomb", "data", bomb)
    redis.hset(f"rq:job:{name}-broken", mapping={"status": "no such status", "timeout": "soon"})
    redis.hset(f"rq:job:{name}-positional", "data", json.dumps(["tests.queue_jobs.work", "x", ["y"], {}]))
    enqueue(redis, name, "work", {"path": str(path)}, f"{name}-good")
    with RqWorker(valkey, name, tmp_path / "a") as worker:
        redis.set(f"eaglefeed:breaker:test-node|{name}", "")  # not a hash: replaced below
        redis.delete(f"eaglefeed:breaker:test-node|{name}")
        for _ in range(2):
            until(lambda: len(dead(redis, name)) >= 4 or len(lines(path)) == 2, 60, "dead letters")
            redis.delete(f"eaglefeed:breaker:test-node|{name}")
        until(lambda: len(lines(path)) == 2, 60, "the good job runs")
        assert worker.process.poll() is None, worker.text()
    expected = {f"{name}-{job}" for job in ("unlisted", "callback", "pickled", "bomb", "broken", "positional")}
    assert set(dead(redis, name)) == expected and not evil.exists()


def test_a_dead_letter_says_why_where_and_without_secrets(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """Reason, node, attempts and inputs are in the dead letter; a secret in the message is in nothing that is kept."""
    secret = "planted-Secret-Key-123"
    enqueue(redis, name, "fail_for_good", {"x": 1}, f"{name}-job")
    with RqWorker(valkey, name, tmp_path / "a", environment={"AWS_SECRET_ACCESS_KEY": secret}) as worker:
        until(lambda: dead(redis, name), 30, "the dead letter")
        log = worker.text()
    meta = json.loads(redis.hget(f"rq:job:{name}-job", "meta") or b"{}")
    assert (meta["kind"], meta["node"], meta["attempts"], meta["run"]) == ("CorruptData", "test-node", 1, "r")
    kept = redis.hgetall(f"rq:job:{name}-job"), redis.xrange(f"rq:results:{name}-job")
    texts = [log, str(kept), *map(_unpacked, [*kept[0].values(), *kept[1][0][1].values()])]
    assert any("as ordered" in text for text in texts)
    assert not any(secret in text for text in texts)


def _unpacked(value: bytes) -> str:
    import base64

    try:
        return zlib.decompress(base64.b64decode(value)).decode()
    except ValueError:
        return ""
    except zlib.error:
        return value.decode("utf-8", "replace")


def test_a_transient_fault_costs_no_attempt(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """A job that fails transiently goes back until it succeeds; it is no dead letter in between."""
    path = tmp_path / "now"
    enqueue(redis, name, "fail_for_now", {"path": str(path)}, f"{name}-job")
    with RqWorker(valkey, name, tmp_path / "a"):
        until(lambda: b'"handed_back": 2' in (redis.hget(f"rq:job:{name}-job", "meta") or b""), 30, "two hand-backs")
        path.touch()
        until(lambda: not redis.exists(f"rq:job:{name}-job"), 30, "the job succeeds")
    assert dead(redis, name) == []


def test_a_node_where_everything_fails_pauses(redis: Redis, valkey: str, name: str, tmp_path: Path):
    """After the limit of failures in a row nothing more is taken, until the breaker is closed by a person."""
    for number in range(7):
        enqueue(redis, name, "fail_for_good", {}, f"{name}-{number}")
    with RqWorker(valkey, name, tmp_path / "a") as worker:
        until(lambda: "is paused after 4 failures in a row" in worker.text(), 30, "the pause")
        assert len(dead(redis, name)) == 4 and redis.llen(f"rq:queue:{name}") == 3
        redis.delete(f"eaglefeed:breaker:test-node|{name}")
        until(lambda: len(dead(redis, name)) == 7, 30, "it goes on")


def test_redis_may_be_emptied_killed_and_replaced_by_a_replica(tmp_path: Path):
    """FLUSHALL, kill -9, read-only and out of memory: the worker waits each out, in one process, and works on."""
    server, path = Valkey(tmp_path / "valkey"), tmp_path / "notes"
    server.start()
    redis = Redis.from_url(server.url)
    try:
        with RqWorker(server.url, "q", tmp_path / "a") as worker:
            enqueue(redis, "q", "work", {"path": str(path)}, "before")
            until(lambda: len(lines(path)) == 2, 30, "the first job")
            redis.flushall()
            enqueue(redis, "q", "work", {"path": str(path), "seconds": 3}, "during")
            until(lambda: len(lines(path)) == 3, 30, "a job after FLUSHALL")
            server.stop(signal.SIGKILL)
            server.start()
            seconds = until(lambda: not redis.exists("rq:job:during"), 30, "the job's end is written down")
            print(f"Redis killed and restarted: the job that ran meanwhile is settled {seconds:.1f} s later")
            redis.replicaof("127.0.0.1", 1)
            until(lambda: "READONLY" in worker.text() or "read only replica" in worker.text(), 60, "it meets a replica")
            redis.replicaof("NO", "ONE")
            enqueue(redis, "q", "work", {"path": str(path)}, "after")
            until(lambda: len(lines(path)) == 6, 60, "a job after the failover")
            redis.config_set("maxmemory", 1)
            until(lambda: "used memory" in worker.text(), 60, "it meets a full Redis")
            redis.config_set("maxmemory", 0)
            enqueue(redis, "q", "work", {"path": str(path)}, "last")
            until(lambda: len(lines(path)) == 8, 60, "a job after the memory")
            assert worker.process.poll() is None
    finally:
        redis.close()
        server.stop()


def test_two_queues_for_one_worker_are_refused(valkey: str, name: str, tmp_path: Path):
    """RQ takes jobs from several queues without a way back; the worker ends with a message, and no job is lost."""
    with RqWorker(valkey, name, tmp_path / "a") as worker:
        pass
    import subprocess

    from tests.rq_workers import CHECKOUT

    command = [*worker.process.args, f"{name}-2"]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={"PYTHONPATH": str(CHECKOUT), "RQ_REDIS_URL": valkey},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1 and b"one queue a worker" in done.stderr


def test_a_password_of_redis_is_in_no_log_and_no_command_line(tmp_path: Path):
    """A worker given a Redis with a password works, and neither `ps` nor its log, in trouble too, shows it."""
    password = "planted-Redis-Pass-456"
    server, path = Valkey(tmp_path / "valkey"), tmp_path / "notes"
    server.start()
    redis = Redis.from_url(server.url)
    redis.config_set("requirepass", password)
    redis = Redis.from_url(server.url, password=password)
    try:
        with RqWorker(server.url.replace("//", f"//:{password}@"), "q", tmp_path / "a") as worker:
            enqueue(redis, "q", "work", {"path": str(path)}, "job")
            until(lambda: len(lines(path)) == 2, 30, "the job")
            assert password not in Path(f"/proc/{worker.process.pid}/cmdline").read_text()
            server.stop(signal.SIGKILL)
            until(lambda: "not ready" in worker.text() or "could not connect" in worker.text(), 60, "it notices")
        assert password not in worker.text()
    finally:
        redis.close()
        server.stop()
