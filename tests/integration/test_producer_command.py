"""`eaglefeed produce` against a real valkey-server: counted to the last row, each sample enqueued once."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis
from redis.exceptions import WatchError
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from config import counters, names
from config.run import DataSettings
from config.run_state import write_state
from eaglefeed.cli import main as eaglefeed
from eaglefeed.errors import UsageError
from eaglefeed.manifest import Manifest, StoredSample, manifest_key, run_key
from eaglefeed.records import Batch, Sample
from eaglefeed.stores import open_store
from producer.enqueue import Enqueuer
from producer.rows import Row
from producer.templates import load_tokenizer
from producer.tokens import Preparer
from tests import chat_templates
from tests.services import BUCKET, Valkey

RUN = "produced"
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def redis_url(valkey: str) -> Iterator[str]:
    """A database of its own, empty."""
    url = valkey.rpartition("/")[0] + "/7"
    with Redis.from_url(url) as redis:
        redis.flushdb()
        yield url
        redis.flushdb()


@pytest.fixture
def redis(redis_url: str) -> Iterator[Any]:
    with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the producer reads of a checkpoint: config and tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = chat_templates.make_tokenizer("chatml")
    tokenizer.save_pretrained(folder)
    config = {"num_hidden_layers": 8, "hidden_size": 64, "vocab_size": len(tokenizer), "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def run_file(tmp_path: Path, model: Path) -> Path:
    return write_run(tmp_path, model)


def write_run(folder: Path, model: Path, **data: Any) -> Path:
    settings = {"max_length": 400, "batch_tokens": 1500, "max_queued_batches": 100_000} | data
    path = folder / "run.toml"
    lines = [f'name = "{RUN}"', "[model]", f'path = "{model}"', "[store]", f'url = "{folder}/store"', "[data]"]
    path.write_text("\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]))
    return path


def conversation(number: int, turns: int = 1) -> dict[str, Any]:
    words = random.Random(number)
    messages = []
    for turn in range(turns):
        content = " ".join(words.choices(["Berlin", "rain", "two", "plus", "model", "東京"], k=words.randint(1, 40)))
        messages.append({"role": "user", "content": f"{number} {turn} {content}?"})
        messages.append({"role": "assistant", "content": f"{content} {number}."})
    return {"id": f"c{number}", "messages": messages}


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def arguments(run_file: Path, redis_url: str, *data: Any, extra: tuple[str, ...] = ()) -> list[str]:
    names_of_data = [str(name) for name in data]
    rejects = str(run_file.parent / "rejects.jsonl")
    fixed = ["--run", str(run_file), "--redis", redis_url, "--rejects", rejects, "--json", "--quiet"]
    return ["produce", *names_of_data, *fixed, *(extra or ("--jobs", "0"))]


def produce(
    capsys: pytest.CaptureFixture[str], run_file: Path, redis_url: str, *data: Any, extra: tuple[str, ...] = ()
) -> dict[str, Any]:
    capsys.readouterr()
    code = eaglefeed(arguments(run_file, redis_url, *data, extra=extra))
    output = capsys.readouterr()
    assert code == 0, output.err
    summary: dict[str, Any] = json.loads(output.out.splitlines()[-1])
    assert summary["rows"] == summary["unique"] + summary["duplicate"] + sum(summary["rejected"].values())
    return summary


def batches(redis: Any) -> list[Batch]:
    """All queued batches in order, unpacked and verified."""
    queue = Queue(names.EXTRACT_QUEUE, connection=redis, serializer=JSONSerializer)
    jobs = Job.fetch_many(queue.get_job_ids(), connection=redis, serializer=JSONSerializer)
    return [Batch.from_payload(job.kwargs["payload"]) for job in jobs if job]


def sample_counts(redis: Any) -> Counter[str]:
    return Counter(sample.id for batch in batches(redis) for sample in batch.samples)


ROWS = [
    *[conversation(number, 1 + number % 3) for number in range(40)],
    conversation(3, 1),
    {**conversation(5, 3), "id": "another name"},
    "{broken",
    {"messages": []},
    {"title": "nothing"},
    {"messages": [{"role": "user", "content": "x" * 9000}, {"role": "assistant", "content": "too long"}]},
    {"input_ids": [1, 2, 99_999], "loss_mask": [0, 1, 1]},
]


def test_rows_add_up_and_are_enqueued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """rows = unique + duplicate + rejected, the queue holds the unique ones, and counters agree with it."""
    data = write_rows(tmp_path / "a.jsonl", ROWS)
    summary = produce(capsys, run_file, redis_url, data)
    assert summary["rows"] == 47
    assert (summary["unique"], summary["duplicate"]) == (40, 2)
    assert summary["rejected"] == {
        "invalid-json": 1,
        "empty": 1,
        "unknown-shape": 1,
        "too-long": 1,
        "out-of-vocabulary": 1,
    }
    assert summary["conversations"] == 42 and summary["enqueued"] == 40 and summary["skipped_stored"] == 0
    assert summary["shapes"] == {"messages": 44, "tokenized": 1}
    queued = batches(redis)
    assert len(queued) == summary["batches"]
    assert sum(batch.num_tokens for batch in queued) == summary["tokens"]
    assert set(sample_counts(redis).values()) == {1} and len(sample_counts(redis)) == 40
    assert all(batch.num_tokens <= 1500 for batch in queued)
    counted = counters.read(redis, RUN)
    assert (counted["unique"], counted["batches"]) == (40, len(queued))
    assert redis.smembers(names.RUNS_KEY) == {RUN.encode()}
    assert json.loads(redis.get(names.run_key(RUN)))["data"]["batch_tokens"] == 1500
    assert (tmp_path / "store" / run_key(RUN)).exists()


def test_rejects_have_file_line_and_reason_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str
) -> None:
    """The same command again adds nothing to rejects.jsonl."""
    data = write_rows(tmp_path / "a.jsonl", ROWS)
    for _ in range(2):
        produce(capsys, run_file, redis_url, data)
    rejects = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [
        (43, "invalid-json"),
        (44, "empty"),
        (45, "unknown-shape"),
        (46, "too-long"),
        (47, "out-of-vocabulary"),
    ]
    assert all(reject["file"] == str(data) and reject["detail"] for reject in rejects)


def test_the_same_command_again_enqueues_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Every sample is known; more data adds only what is new, across files."""
    data = write_rows(tmp_path / "a.jsonl", ROWS)
    first = produce(capsys, run_file, redis_url, data)
    again = produce(capsys, run_file, redis_url, data)
    assert (again["unique"], again["enqueued"], again["batches"]) == (0, 0, 0)
    assert again["duplicate"] == again["skipped_stored"] + 0 == 42
    more = write_rows(tmp_path / "b.jsonl", [conversation(number) for number in range(1000, 1005)])
    both = produce(capsys, run_file, redis_url, data, more, data)
    assert (both["unique"], both["rows"]) == (5, 52)
    assert len(sample_counts(redis)) == first["unique"] + 5


def test_identical_input_gives_identical_batches(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Batches and their order do not depend on how many processes tokenize."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(number, 1 + number % 4) for number in range(200)])
    produce(capsys, run_file, redis_url, data)
    serial = [batch.id for batch in batches(redis)]
    redis.flushdb()
    produce(capsys, run_file, redis_url, data, extra=("--jobs", "2"))
    assert [batch.id for batch in batches(redis)] == serial


def test_one_transaction_claims_counts_and_enqueues(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Known ids, the batch's mark, counters and the job reach the server between one MULTI and its EXEC."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(1)])
    seen: list[str] = []
    with redis.monitor() as monitor:
        watcher = threading.Thread(target=lambda: seen.extend(_commands_until_exec(monitor)))
        watcher.start()
        produce(capsys, run_file, redis_url, data)
        watcher.join(30)
    inside = seen[seen.index("MULTI") + 1 :]
    for expected in (
        f"SADD {names.known_key(RUN)}",
        f"HSET {names.batches_key(RUN)}",
        f"HINCRBY {names.count_key(RUN)} unique 1",
        "SADD rq:queues rq:queue:extract",
        "HSET rq:job:",
        "RPUSH rq:queue:extract",
    ):
        assert any(command.startswith(expected) for command in inside), expected


def _commands_until_exec(monitor: Any) -> Iterator[str]:
    for entry in monitor.listen():
        yield entry["command"]
        if entry["command"] == "EXEC":
            return


def test_an_emptied_redis_is_seeded_from_the_store(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """What the manifests hold, stored or rejected, is not enqueued again; what was lost with Redis is."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(number) for number in range(60)])
    produce(capsys, run_file, redis_url, data)
    stored, *lost = batches(redis)
    store = open_store(f"{tmp_path}/store")
    samples = tuple(
        StoredSample(sample.id, sample.num_tokens, 1, sample.num_tokens, 0, 1, "00", "00") for sample in stored.samples
    )
    manifest = Manifest(RUN, stored.id, "x", 1, "crc32:00000000", 1, samples)
    store.create(manifest_key(RUN, stored.id), manifest.to_json())
    redis.flushdb()
    summary = produce(capsys, run_file, redis_url, data)
    assert summary["skipped_stored"] == len(samples)
    assert sample_counts(redis) == Counter(sample.id for batch in lost for sample in batch.samples)
    assert counters.read(redis, RUN)["unique"] == 60


def test_no_more_than_max_queued_batches_wait(tmp_path: Path, model: Path, redis_url: str, redis: Any) -> None:
    """The producer pauses, says why, and goes on when a worker takes a batch."""
    run_file = write_run(tmp_path, model, max_queued_batches=2, batch_tokens=200)
    data = write_rows(tmp_path / "a.jsonl", [conversation(number) for number in range(30)])
    command = [sys.executable, "-m", "producer", *arguments(run_file, redis_url, data)[1:]]
    command.remove("--quiet")
    taken: list[str] = []
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        longest = 0
        while process.poll() is None:
            length = redis.llen("rq:queue:extract")
            longest = max(longest, length)
            if length >= 2:
                time.sleep(0.6)
                longest = max(longest, redis.llen("rq:queue:extract"))
                taken.append(redis.lpop("rq:queue:extract"))
            time.sleep(0.01)
        output, error = process.communicate()
    summary = json.loads(output)
    assert longest == 2
    assert summary["batches"] == len(taken) + redis.llen("rq:queue:extract") > 3
    assert "paused: 2 batches are queued and data.max_queued_batches is 2" in error and "went on after" in error


def test_another_identity_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """A changed preparation under the same run name enqueues nothing and names the field (Automodel 2478)."""
    data = write_rows(tmp_path / "a.jsonl", ROWS)
    produce(capsys, run_file, redis_url, data)
    before = redis.llen("rq:queue:extract")
    changed = write_run(tmp_path, model, max_length=300)
    assert eaglefeed(arguments(changed, redis_url, write_rows(data, [conversation(77)]))) == 2
    assert "max_length: 400 there, 300 here" in capsys.readouterr().err
    assert redis.llen("rq:queue:extract") == before


def test_a_cancelled_run_takes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Neither at the start nor when it is cancelled between two batches."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(1)])
    write_state(redis, RUN, "cancelled")
    assert eaglefeed(arguments(run_file, redis_url, data)) == 2
    assert "is cancelled: nothing is added to it" in capsys.readouterr().err
    sample = Sample(np.arange(5, dtype=np.uint32), np.ones(5, np.uint8))
    with pytest.raises(UsageError, match="cancelled"):
        Enqueuer(redis, RUN, 10).enqueue([sample])
    assert redis.llen("rq:queue:extract") == 0 == redis.scard(names.known_key(RUN))


def test_without_redis_the_command_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path
) -> None:
    """Exit code 3 within seconds, the address without its password."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(1)])
    assert eaglefeed(arguments(run_file, "redis://:secret@127.0.0.1:1/0", data)) == 3
    error = capsys.readouterr().err
    assert "127.0.0.1:1/0 does not answer" in error and "secret" not in error


def test_standard_input(tmp_path: Path, run_file: Path, redis_url: str, redis: Any) -> None:
    """``-`` reads what is piped in, and rejects are reported under its name."""
    rows = "".join(json.dumps(conversation(number)) + "\n" for number in range(5)) + "{\n"
    command = [sys.executable, "-m", "producer", *arguments(run_file, redis_url, "-")[1:]]
    done = subprocess.run(command, input=rows, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unique"] == 5 == len(sample_counts(redis))
    assert json.loads((tmp_path / "rejects.jsonl").read_text())["file"] == "-"


def test_a_damaged_file_fails_the_command_after_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Its readable rows and the other files are enqueued; exit code 1 and a sentence say what was not read."""
    broken = tmp_path / "a.json"
    broken.write_text(json.dumps([conversation(1), conversation(2)])[:-30])
    good = write_rows(tmp_path / "b.jsonl", [conversation(3)])
    assert eaglefeed(arguments(run_file, redis_url, broken, good)) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["rejected"] == {"broken-file": 1}
    assert "a.json" in output.err and len(sample_counts(redis)) == 2


def test_priority_goes_to_the_head_of_the_queue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """A batch with --priority is the next that a worker takes."""
    produce(capsys, run_file, redis_url, write_rows(tmp_path / "a.jsonl", [conversation(1)]))
    last = write_rows(tmp_path / "b.jsonl", [conversation(2)])
    produce(capsys, run_file, redis_url, last, extra=("--jobs", "0", "--priority"))
    assert conversation_ids(batches(redis)[0]) != conversation_ids(batches(redis)[1])
    first = redis.lindex("rq:queue:extract", 0).decode()
    assert first == batches(redis)[0].id
    marks = redis.hgetall(names.batches_key(RUN))
    assert len(set(marks.values())) == 2


def conversation_ids(batch: Batch) -> list[str]:
    return [sample.id for sample in batch.samples]


def test_limit_and_seed_are_the_same_sample_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str
) -> None:
    """A drawn sample enqueued again is all known."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(number) for number in range(50)])
    extra = ("--jobs", "0", "--limit", "10", "--seed", "3")
    assert produce(capsys, run_file, redis_url, data, extra=extra)["unique"] == 10
    again = produce(capsys, run_file, redis_url, data, extra=extra)
    assert (again["unique"], again["skipped_stored"]) == (0, 10)


def test_near_duplicates_are_reported_and_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, run_file: Path, redis_url: str
) -> None:
    """--near-dup counts what a prefix cache would swallow, and drops nothing."""
    system = {"role": "system", "content": "Answer briefly and kindly, please, in one sentence."}
    rows = [{"messages": [system, *conversation(number)["messages"]]} for number in range(10)]
    data = write_rows(tmp_path / "a.jsonl", rows)
    summary = produce(capsys, run_file, redis_url, data, extra=("--jobs", "0", "--near-dup", "8"))
    assert summary["unique"] == 10
    assert summary["near_duplicates"]["conversations"] == 9
    assert summary["near_duplicates"]["tokens"] >= 9 * 20


class _AnswerLost(Redis):
    """Executes a transaction and then behaves as when the connection broke before its answer came."""

    lost = False

    def pipeline(self, *arguments: Any, **options: Any) -> Any:
        pipe: Any = super().pipeline(*arguments, **options)
        execute = pipe.execute

        def lose(*inner: Any, **also: Any) -> Any:
            result = execute(*inner, **also)
            if not self.lost:
                self.lost = True
                raise WatchError("A ConnectionError occurred while watching one or more keys")
            return result

        pipe.execute = lose
        return pipe


def test_a_lost_answer_to_a_committed_transaction_is_recognized(redis_url: str, redis: Any) -> None:
    """The batch is this producer's and counted as unique, not taken for somebody else's duplicate."""
    sample = Sample(np.arange(5, dtype=np.uint32), np.ones(5, np.uint8))
    with _AnswerLost.from_url(redis_url) as flaky:
        claim = Enqueuer(flaky, RUN, 10).enqueue([sample])
    assert claim.enqueued == [sample] and claim.known == []
    assert sample_counts(redis) == Counter([sample.id])


NUM_KILLED_ROWS = 10_000
"""A quiet machine enqueues about 250 samples a round: ten rounds come to a quarter of these."""


def _start(arguments_of_command: list[str]) -> Any:
    """The command in a forked process: all imports done, so a kill falls into the work and not into start-up."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(arguments_of_command,))
    process.start()
    return process


def _child(arguments_of_command: list[str]) -> None:
    with contextlib.redirect_stdout(Path(os.devnull).open("w")):
        code = eaglefeed(arguments_of_command)
    os._exit(code)


def ids_of(rows: list[dict[str, Any]]) -> set[str]:
    """The sample ids of the rows that are not too long."""
    preparer = Preparer(chat_templates.make_tokenizer("chatml"), DataSettings(max_length=400), 1 << 20)
    prepared = preparer.prepare([Row("f", 1, row) for row in rows])
    return {row.sample.id for row in prepared if row.sample}


def test_two_producers_killed_ten_times_enqueue_the_union_once(
    tmp_path: Path, model: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Overlapping files, SIGKILL at random moments, started again: each sample of the union is enqueued once."""
    rows = [conversation(number, 1 + number % 3) for number in range(NUM_KILLED_ROWS)]
    one = write_rows(tmp_path / "one.jsonl", rows[: NUM_KILLED_ROWS * 2 // 3])
    other = write_rows(tmp_path / "other.jsonl", rows[: NUM_KILLED_ROWS // 4 : -1])
    expected = ids_of(rows)
    assert len(expected) > 0.95 * NUM_KILLED_ROWS
    commands = [arguments(run_file, redis_url, one), arguments(run_file, redis_url, other)]
    load_tokenizer(str(model))  # imported here once, not in each process
    moments = random.Random(4)
    for _ in range(10):
        # After some more samples, at any point of whatever the two are doing then.
        enough = redis.scard(names.known_key(RUN)) + moments.randint(10, 100)
        processes = [_start(command) for command in commands]
        wait_until(lambda: redis.scard(names.known_key(RUN)) >= enough)  # noqa: B023  # called in this round only
        for process in processes:
            time.sleep(moments.uniform(0, 0.05))
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join(30)
            process.close()
    assert redis.scard(names.known_key(RUN)) < 0.95 * len(expected), "they were done before the last kill"
    for process in [_start(command) for command in commands]:
        process.join(120)
        assert process.exitcode == 0
        process.close()
    assert sample_counts(redis) == Counter(expected)
    assert redis.scard(names.known_key(RUN)) == counters.read(redis, RUN)["unique"] == len(expected)


def test_a_killed_redis_costs_nothing(tmp_path: Path, run_file: Path) -> None:
    """The server is killed under a working producer and started again on its data: the producer goes on by itself."""
    server = Valkey(tmp_path / "valkey")
    server.start()
    rows = [conversation(number, 1 + number % 3) for number in range(3000)]
    data = write_rows(tmp_path / "a.jsonl", rows)
    command = [sys.executable, "-m", "producer", *arguments(run_file, server.url, data)[1:]]
    try:
        with Redis.from_url(server.url) as redis:
            process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for enough in (300, 1200):
                wait_until(lambda: redis.scard(names.known_key(RUN)) >= enough)  # noqa: B023  # called in this round
                server.stop(signal.SIGKILL)
                time.sleep(0.5)
                server.start()
            output, error = process.communicate(timeout=120)
            assert process.returncode == 0, error
            expected = ids_of(rows)
            assert sample_counts(redis) == Counter(expected)
            assert counters.read(redis, RUN)["unique"] == len(expected) == json.loads(output)["unique"]
    finally:
        server.stop()


def test_the_store_may_be_s3(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run_file: Path,
    redis_url: str,
    redis: Any,
    seaweed: dict[str, str],
) -> None:
    """run.json is created there once, and an emptied Redis learns from the manifests there."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/produced-{os.getpid()}"
    extra = ("--jobs", "0", "--store", url)
    data = write_rows(tmp_path / "a.jsonl", [conversation(number) for number in range(60)])
    produce(capsys, run_file, redis_url, data, extra=extra)
    stored = batches(redis)[0]
    samples = tuple(StoredSample(one.id, one.num_tokens, 1, one.num_tokens, 0, 1, "0", "0") for one in stored.samples)
    manifest = Manifest(RUN, stored.id, "x", 1, "crc32:00000000", 1, samples)
    assert open_store(url).create(manifest_key(RUN, stored.id), manifest.to_json())
    redis.flushdb()
    assert produce(capsys, run_file, redis_url, data, extra=extra)["skipped_stored"] == len(samples)
    assert not (tmp_path / "store").exists()


def test_a_tokenizer_that_cannot_be_loaded_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, redis_url: str
) -> None:
    """Also when it is loaded in processes of its own: the cause, not a broken pool."""
    folder = tmp_path / "no-tokenizer"
    folder.mkdir()
    config = {"num_hidden_layers": 8, "hidden_size": 64, "vocab_size": 100, "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{")
    run_file = write_run(tmp_path, folder)
    data = write_rows(tmp_path / "a.jsonl", [conversation(1)])
    assert eaglefeed(arguments(run_file, redis_url, data, extra=("--jobs", "1"))) == 2
    assert "no tokenizer could be loaded" in capsys.readouterr().err


def test_ctrl_c_prints_counts_that_add_up_and_leaves_nothing_behind(
    tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """Exit code 130, the sum holds for what was settled, no tokenizing process stays, and the same command goes on."""
    rows = [conversation(number, 1 + number % 3) for number in range(20_000)]
    data = write_rows(tmp_path / "a.jsonl", rows)
    command = [sys.executable, "-m", "producer", *arguments(run_file, redis_url, data, extra=("--jobs", "2"))[1:]]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: redis.scard(names.known_key(RUN)) > 0)
    os.killpg(process.pid, signal.SIGINT)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    summary = json.loads(output)
    assert summary["rows"] == summary["unique"] + summary["duplicate"] + sum(summary["rejected"].values())
    assert 0 < summary["unique"] == redis.scard(names.known_key(RUN)) < 20_000
    wait_until(lambda: not processes_of_session(process.pid))


def test_a_killed_producer_leaves_no_tokenizing_process(
    tmp_path: Path, run_file: Path, redis_url: str, redis: Any
) -> None:
    """The processes that tokenize end with the one that started them, even by SIGKILL."""
    data = write_rows(tmp_path / "a.jsonl", [conversation(number) for number in range(20_000)])
    command = [sys.executable, "-m", "producer", *arguments(run_file, redis_url, data, extra=("--jobs", "2"))[1:]]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: redis.scard(names.known_key(RUN)) > 0)
        assert len(processes_of_session(process.pid)) >= 3
        process.kill()
        process.wait()
    wait_until(lambda: not processes_of_session(process.pid))


def processes_of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def wait_until(is_true: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
