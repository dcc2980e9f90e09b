"""The producer: tokenizing against the tokenizer alone, packed samples into Redis, a million rows in bounded memory."""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from redis import Redis

from config import names
from config.run import DataSettings
from eaglefeed.progress import Progress
from eaglefeed.records import Sample
from producer import conversations
from producer.enqueue import Enqueuer
from producer.pool import CHUNK_ROWS, chunked
from producer.production import Production
from producer.rows import Row
from producer.templates import load_tokenizer
from producer.tokens import Prepared, Preparer
from tests.services import Valkey

CHECKOUT = Path(__file__).parents[1]
MODEL = CHECKOUT / ".eaglefeed/models/SmolLM2-135M-Instruct"
TEXTS = CHECKOUT / "examples/conversations.jsonl"
VOCABULARY = 49_152
SAMPLE_TOKENS = 3_600
BATCH_TOKENS = 32_768
RUN = "bench-producer"


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens a second of one core; samples a second into Redis; rows a second and peak memory of the stream."""

    tokenizer_tokens_s: float
    producer_tokens_s: float
    of_tokenizer: float
    mean_tokens: float
    enqueue_samples_s: float
    enqueue_samples_core_s: float
    enqueue_job_bytes_sample: float
    stream_rows: int
    stream_rows_s: float
    stream_unique: int
    stream_peak_bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=MODEL, metavar="DIR", help="tokenizer (default %(default)s)")
    parser.add_argument("--data", type=Path, default=TEXTS, metavar="FILE", help="JSONL to tokenize")
    parser.add_argument("--rounds", type=int, default=5, help="best of so many (default %(default)s)")
    parser.add_argument("--samples", type=int, default=10_000, help="packed samples to enqueue (default %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="synthetic rows to stream (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            # The stream first: peak memory is the process's, and the tokenizer's libraries would be in it.
            streamed = stream(server.url, parsed.rows, parsed.quiet)
            enqueued = enqueue(server.url, parsed.samples)
            tokenized = tokenize(parsed.model, parsed.data, parsed.rounds)
        finally:
            server.stop()
    rows, rows_s, unique, peak = streamed
    figures = Figures(*tokenized, *enqueued, rows, rows_s, unique, peak)
    print(json.dumps(asdict(figures)) if parsed.json else _sentences(figures))
    return 0


def tokenize(model: Path, data: Path, rounds: int) -> tuple[float, float, float, float]:
    """One core's tokens a second: the tokenizer on rendered texts, and the producer from JSON line to sample."""
    preparer = Preparer(load_tokenizer(str(model)), DataSettings(max_length=1 << 20), 1 << 32)
    rows, texts = _usable(preparer, data.read_bytes().splitlines())
    tokenizer = preparer.template.tokenizer
    num_tokens = sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    alone = made = float("inf")
    for _ in range(rounds):
        alone = min(alone, _cpu_seconds(lambda: [_call(tokenizer, part) for part in _parts(texts)]))
        made = min(made, _cpu_seconds(lambda: [preparer.prepare(part) for part in chunked(rows)]))
    return num_tokens / alone, num_tokens / made, alone / made, num_tokens / len(texts)


def enqueue(url: str, num_samples: int) -> tuple[float, float, float]:
    """Samples a second, and a core's second, from token ids to jobs; the queue is emptied beside it."""
    random = np.random.default_rng(1)
    ranks = random.zipf(1.2, (num_samples, SAMPLE_TOKENS)) % VOCABULARY
    mask = np.ones(SAMPLE_TOKENS, np.uint8)
    samples = [Sample(ids.astype(np.uint32), mask) for ids in ranks]
    size = BATCH_TOKENS // SAMPLE_TOKENS
    batches = [samples[start : start + size] for start in range(0, num_samples, size)]
    with Redis.from_url(url) as redis:
        redis.flushdb()
        job_bytes = _job_bytes(redis, Enqueuer(redis, RUN, 1_000), batches[0])
    with Redis.from_url(url) as redis, drained(url):
        enqueuer = Enqueuer(redis, RUN, 1_000)
        started, cpu = time.perf_counter(), time.thread_time()
        for batch in batches[1:]:
            enqueuer.enqueue(batch)
        seconds, cpu = time.perf_counter() - started, time.thread_time() - cpu
    done = num_samples - size
    return done / seconds, done / cpu, job_bytes / size


def stream(url: str, num_rows: int, quiet: bool) -> tuple[int, float, int, int]:
    """Rows a second, unique samples and peak bytes for tokenized rows made on the fly, a tenth of them repeats."""
    preparer = Preparer(_NoTokenizer(), DataSettings(shape="tokenized"), VOCABULARY)
    with Redis.from_url(url) as redis, drained(url), Progress("stream", num_rows, "rows", quiet) as progress:
        redis.flushdb()
        work = Production(redis, Enqueuer(redis, RUN, 1_000), BATCH_TOKENS, _Nowhere())
        started = time.perf_counter()
        for chunk in chunked(synthetic_rows(num_rows)):
            work.take(preparer.prepare(chunk))
            progress.update(work.tally.rows_settled, unique=work.tally.unique)
        work.finish()
        work.tally.check()
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return work.tally.rows_settled, num_rows / seconds, work.tally.unique, peak


def synthetic_rows(num_rows: int) -> Iterator[Row]:
    """Rows of 20 to 180 token ids as JSON; every tenth repeats an earlier one."""
    random = np.random.default_rng(2)
    block = random.integers(0, VOCABULARY, 1 << 20).tolist()
    for number in range(num_rows):
        of = number if number % 10 else number // 2
        start, length = of * 7919 % (len(block) - 200), 20 + of % 161
        ids = [of % VOCABULARY, of // VOCABULARY, *block[start : start + length]]
        mask = [0] * 8 + [1] * (len(ids) - 8)
        yield Row("synthetic", number + 1, json.dumps({"input_ids": ids, "loss_mask": mask}).encode())


class drained:  # reads as the sentence it is: with drained(url)
    """Takes jobs off the queue and deletes them, as workers would, so that Redis stays small."""

    def __init__(self, url: str) -> None:
        self._redis, self._stop = Redis.from_url(url), threading.Event()
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._redis.close()

    def _drain(self) -> None:
        while not self._stop.is_set():
            taken: Any = self._redis.lpop(f"rq:queue:{names.EXTRACT_QUEUE}", 100)
            if taken:
                self._redis.unlink(*(b"rq:job:" + job for job in taken))
            else:
                time.sleep(0.01)


class _NoTokenizer:
    """Token ids need none."""

    chat_template = ""
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012


class _Nowhere:
    def add(self, row: Prepared) -> None:
        raise ValueError(f"a synthetic row was rejected: {row.detail}")


def _usable(preparer: Preparer, lines: list[bytes]) -> tuple[list[Row], list[str]]:
    rows, texts = [], []
    for number, line in enumerate(lines, 1):
        row = Row("f", number, line)
        if preparer.prepare([row])[0].sample is not None:
            record = conversations.parse(row)
            content = conversations.read(record, conversations.find_shape(record))
            if isinstance(content, conversations.Conversation):
                fitted = preparer.template.fit(content)
                rows.append(row)
                texts.append(preparer.template.render(fitted.messages, fitted.tools))
    return rows, texts


def _parts(texts: list[str]) -> Iterator[list[str]]:
    return (texts[start : start + CHUNK_ROWS] for start in range(0, len(texts), CHUNK_ROWS))


def _call(tokenizer: Any, texts: list[str]) -> Any:
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def _cpu_seconds(work: Any) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _job_bytes(redis: Any, enqueuer: Enqueuer, batch: list[Sample]) -> int:
    """Bytes of one job's packed payload as Redis holds it."""
    claim = enqueuer.enqueue(batch)
    key = next(iter(redis.scan_iter("rq:job:*")), None) if claim.enqueued else None
    return int(redis.hstrlen(key, "data")) if key else 0


def _sentences(figures: Figures) -> str:
    return "\n".join(
        [
            f"tokenize  {figures.producer_tokens_s:,.0f} tokens/s a core from JSON line to sample, "
            f"{100 * figures.of_tokenizer:.0f} % of the tokenizer alone ({figures.tokenizer_tokens_s:,.0f}), "
            f"rows of {figures.mean_tokens:.0f} tokens",
            f"enqueue   {figures.enqueue_samples_core_s:,.0f} samples/s a core "
            f"({figures.enqueue_samples_s:,.0f} by the clock), {SAMPLE_TOKENS:,} tokens each, "
            f"{figures.enqueue_job_bytes_sample:,.0f} bytes in Redis",
            f"stream    {figures.stream_rows:,} rows, {figures.stream_unique:,} unique, {figures.stream_rows_s:,.0f} "
            f"rows/s, peak {figures.stream_peak_bytes / 1e6:,.0f} MB",
        ]
    )
