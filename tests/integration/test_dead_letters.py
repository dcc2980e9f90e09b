"""``eaglefeed dead`` and ``eaglefeed run-state`` over a real valkey-server, as the commands that a person types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from rq.serializers import JSONSerializer

from config import breaker, counters, letters, names, queues, run_state
from config.queued_job import QueuedJob
from config.redis_checks import check_redis
from dashboard import metrics, panels
from dashboard.reading import Reader
from eaglefeed.errors import EnvironmentFault, RetryableError, UsageError
from eaglefeed.records import Batch
from producer.enqueue import Enqueuer
from storage import dead
from tests.rq_workers import CHECKOUT, RqWorker, until
from tests.runs import make_sample
from tests.services import Valkey

RUN = "letters"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    found = Valkey(tmp_path / "valkey")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def redis(server: Valkey) -> Iterator[Redis]:
    client = Redis.from_url(server.url)
    yield client
    client.close()


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(f'name = "{RUN}"\n[model]\npath = "model"\n[store]\nurl = "{tmp_path / "store"}"\n')
    return path


def command(server: Valkey, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eaglefeed.cli", *arguments, "--redis", server.url],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def enqueued(redis: Redis, *numbers: int) -> list[Batch]:
    """Batches of three samples each, enqueued by the producer's own code."""
    enqueuer, batches = Enqueuer(redis, RUN, 100), []
    for number in numbers:
        batch = Batch(RUN, tuple(make_sample(10 * number + place, 9) for place in range(3)))
        enqueuer.enqueue(list(batch.samples))
        batches.append(batch)
    return batches


def make_letters(server: Valkey, redis: Redis, tmp_path: Path, *numbers: int) -> list[Batch]:
    """Real batches that a worker gives up, because its list of functions lacks theirs."""
    batches = enqueued(redis, *numbers)
    with RqWorker(server.url, names.EXTRACT_QUEUE, tmp_path / "worker.log"):
        until(lambda: redis.zcard("rq:failed:extract") == len(numbers), 30, "dead letters")
    return batches


def dead_counts(redis: Redis) -> dict[str, int]:
    return {name: count for name, count in counters.read(redis, RUN).items() if name.startswith("dead")}


def test_a_dead_letter_is_listed_shown_and_tried_again(server: Valkey, redis: Redis, tmp_path: Path):
    """list (exit 1) and show say reason, node, attempts and lengths; retry queues the same job, uncounted as dead."""
    first, second = make_letters(server, redis, tmp_path, 1, 2)
    assert dead_counts(redis) == {"dead": 6, "dead:not-listed": 6}
    listed = command(server, "dead", "list", "--json")
    letters = {letter["job_id"]: letter for letter in map(json.loads, listed.stdout.splitlines())}
    assert listed.returncode == 1 and set(letters) == {first.id, second.id}
    letter = letters[first.id]
    assert (letter["run"], letter["samples"], letter["node"], letter["attempts"]) == (RUN, 3, "test-node", 1)
    assert letter["counted_as"] == "not-listed"
    assert "is not among" in letter["reason"]
    shown = json.loads(command(server, "dead", "show", first.id[:8]).stdout)
    assert shown["payload"]["lengths"] == [9, 9, 9]
    assert command(server, "dead", "retry", first.id).returncode == 0
    assert redis.lrange("rq:queue:extract", 0, -1) == [first.id.encode()]
    job = QueuedJob.fetch(first.id, connection=redis, serializer=JSONSerializer)
    assert Batch.from_payload(job.kwargs["payload"]).id == first.id and job.get_status() == "queued"
    assert dead_counts(redis) == {"dead": 3, "dead:not-listed": 3}
    assert command(server, "dead", "retry", "no-such").returncode == 2


def test_a_dropped_letter_may_be_produced_again(server: Valkey, redis: Redis, tmp_path: Path):
    """drop asks first; then samples are no longer known or counted, and the producer takes them again."""
    (batch,) = make_letters(server, redis, tmp_path, 3)
    assert command(server, "dead", "drop", batch.id).returncode == 2
    assert command(server, "dead", "drop", "--all", "--yes").returncode == 0
    counted = counters.read(redis, RUN)
    assert (counted["unique"], counted["batches"]) == (0, 0)
    assert dead_counts(redis) == {"dead": 0, "dead:not-listed": 0}
    assert not redis.exists(names.known_key(RUN), f"rq:job:{batch.id}", names.batches_key(RUN))
    assert enqueued(redis, 3)[0].id == batch.id and redis.llen("rq:queue:extract") == 1
    assert command(server, "dead", "list").returncode == 0


def test_dead_samples_are_counted_once_under_their_reason(server: Valkey, redis: Redis, tmp_path: Path):
    """A letter written twice counts once; two people's retry counts once; it dies again, and counts again.

    Page, /metrics and status have the reason.
    """
    (batch,) = make_letters(server, redis, tmp_path, 8)
    job = QueuedJob.fetch(batch.id, connection=redis, serializer=JSONSerializer)
    letters.note_death(job, EnvironmentFault("the answer to the first time was lost"), redis)
    assert dead_counts(redis) == {"dead": 3, "dead:not-listed": 3}
    redis.sadd(names.RUNS_KEY, RUN)
    numbers = Reader(redis).read()
    (run,) = numbers.runs
    assert run.reasons("dead") == {"not-listed": 3}
    assert 'dead</td><td data-label="reason">not-listed</td>' in panels.what_is_wrong(numbers, run)
    body, _ = metrics.render(numbers)
    assert f'eaglefeed_samples_dead{{reason="not-listed",run="{RUN}"}} 3.0' in body.decode()
    assert "dead: not-listed 3" in command(server, "status").stdout
    (letter,) = dead.read_letters(redis)
    dead.retry(redis, letter)
    for act in (dead.retry, dead.drop):
        with pytest.raises(UsageError, match="no dead letter any more"):
            act(redis, letter)
    assert dead_counts(redis) == {"dead": 0, "dead:not-listed": 0}
    assert redis.lrange("rq:queue:extract", 0, -1) == [batch.id.encode()]
    with RqWorker(server.url, names.EXTRACT_QUEUE, tmp_path / "worker.log"):
        until(lambda: redis.zcard("rq:failed:extract") == 1, 30, "the letter again")
    assert dead_counts(redis) == {"dead": 3, "dead:not-listed": 3}


def test_a_run_is_paused_and_resumed(server: Valkey, redis: Redis, run_file: Path):
    """While it is paused no GPU node takes a batch of it; resume opens run and node breakers again."""
    assert command(server, "run-state", "pause", "--run", str(run_file)).returncode == 0
    with pytest.raises(RetryableError, match="is paused"):
        run_state.require_extracting(redis, RUN)
    run_state.require_producing(redis, RUN)
    node = breaker.Breaker(redis, "n1", names.EXTRACT_QUEUE, 2)
    node.failed("one")
    node.require_closed()
    node.failed("two: out of luck")
    with pytest.raises(RetryableError, match="out of luck"):
        node.require_closed()
    said = command(server, "run-state", "resume", "--run", str(run_file)).stdout
    assert "n1" in said
    run_state.require_extracting(redis, RUN)
    node.require_closed()


def test_a_cancelled_run_forgets_what_waited(server: Valkey, redis: Redis, run_file: Path):
    """cancel drops the queued batches with their samples, and nothing is added until somebody resumes."""
    enqueued(redis, 4, 5)
    said = command(server, "run-state", "cancel", "--run", str(run_file)).stdout
    assert "2 queued batches with 6 samples" in said
    assert counters.read(redis, RUN)["unique"] == 0 and redis.llen("rq:queue:extract") == 0
    assert not redis.exists(names.known_key(RUN))
    with pytest.raises(Exception, match="is cancelled"):
        run_state.require_producing(redis, RUN)


def test_a_run_is_closed_only_when_it_is_complete(server: Valkey, redis: Redis, run_file: Path, tmp_path: Path):
    """close is refused while samples are pending; a closed run stays closed in the store when Redis is emptied."""
    (batch,) = enqueued(redis, 6)
    refused = command(server, "run-state", "close", "--run", str(run_file))
    assert refused.returncode == 2 and "3 samples" in refused.stderr
    counters.count_once(redis, RUN, batch.id, {"stored": 3})
    assert command(server, "run-state", "close", "--run", str(run_file)).returncode == 0
    redis.flushall()
    shown = json.loads(command(server, "run-state", "show", "--run", str(run_file), "--json").stdout)
    assert shown["state"] == "closed" and (tmp_path / "store" / RUN / "closed.json").exists()


def test_redis_that_may_forget_is_told(redis: Redis, caplog: pytest.LogCaptureFixture):
    """Without an append-only file there is a warning that says what is lost; an evicting Redis is refused."""
    assert check_redis(redis) == []
    redis.config_set("appendonly", "no")
    (warning,) = check_redis(redis)
    assert "loses queued batches" in warning and "eaglefeed rebuild" in warning and warning in caplog.text
    redis.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(EnvironmentFault, match="noeviction"):
        check_redis(redis)


def test_a_name_belongs_to_one_spool(redis: Redis, tmp_path: Path):
    """A second spool under the same node name is refused while the first is alive; a reused spool keeps its name."""
    from config import nodes

    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    nodes.claim(redis, "n1", nodes.spool_id(first))
    nodes.claim(redis, "n1", nodes.spool_id(first))
    with pytest.raises(nodes.NameTaken, match="EAGLEFEED_NODE"):
        nodes.claim(redis, "n1", nodes.spool_id(second))
    redis.delete(names.owner_key("n1"))  # its time to live has run out
    nodes.claim(redis, "n1", nodes.spool_id(second))


def test_cancel_leaves_other_runs_alone(redis: Redis):
    """Runs share a queue; only the cancelled one's batches are dropped."""
    other = Batch("other", (make_sample(999, 5),))
    Enqueuer(redis, "other", 10).enqueue(list(other.samples))
    enqueued(redis, 7)
    from storage.run_state import drop_queued

    assert drop_queued(redis, RUN) == (1, 3)
    assert redis.lrange(queues.extract_queue(redis).key, 0, -1) == [other.id.encode()]
