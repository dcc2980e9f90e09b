"""The bisection of a batch over real deliveries and a real Redis; the engine's death is the one thing played.

On a real engine, which really dies: tests/engine/test_poison.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from config import names
from eaglefeed.records import Batch, Sample
from tests.runs import make_identity, make_sample
from workers import jobs, suspicion
from workers.engine import Answer, EngineDied


class MortalEngine:
    """Dies whenever one of ``poison`` is in flight; counts what it was asked."""

    def __init__(self, poison: set[str]) -> None:
        self.poison, self.deaths, self.asked = poison, 0, 0

    def ask(self, batch_id: str, samples: Sequence[Sample]) -> list[Answer]:
        self.asked += 1
        if self.poison & {sample.id for sample in samples}:
            self.deaths += 1
            raise EngineDied("as played")
        return [Answer(sample, f"{batch_id}-{sample.id}") for sample in samples]


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    client = Redis.from_url(f"{valkey.removesuffix('/0')}/6")
    client.flushdb()
    yield client
    client.close()


def play(monkeypatch: pytest.MonkeyPatch, redis: Redis, folder: Path, engine: MortalEngine) -> None:
    node = jobs.Node("n1", make_identity("played"), engine, folder, 2, redis)  # type: ignore[arg-type]

    def proved(answer: Answer, *_: object) -> Path:
        path = folder / f"{answer.rid}.dump"
        path.touch()
        return path

    monkeypatch.setattr(jobs, "this_node", lambda: node)
    monkeypatch.setattr(jobs, "prove", proved)


def deliver(batch: Batch) -> int:
    """Deliver the job until it is done, as the queue does; how often."""
    deliveries = 1
    while True:
        try:
            jobs.extract_batch(batch.to_payload())
            return deliveries
        except EngineDied:
            deliveries += 1
            if deliveries > 50:
                raise


def outcome(redis: Redis, batch: Batch) -> tuple[set[str], dict[str, str]]:
    """Samples with a dump, and the rejected ones with their reason, as handed to storage."""
    kwargs = Job.fetch(f"store-{batch.id}", connection=redis, serializer=JSONSerializer).kwargs
    return set(kwargs["dumps"]), {record["id"]: record["reason"] for record in kwargs["rejected"]}


@pytest.mark.parametrize("places", [(0,), (37,), (63,), (5, 41)])
def test_the_poison_is_rejected_and_its_neighbours_go_on(
    places: tuple[int, ...], redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each poison of 64 costs at most 8 engines; all others are handed to storage; nothing is left in the spool."""
    batch = Batch("played", tuple(make_sample(number, 5) for number in range(64)))
    poison = {batch.samples[place].id for place in places}
    engine = MortalEngine(poison)
    play(monkeypatch, redis, tmp_path, engine)
    deliver(batch)
    dumps, rejected = outcome(redis, batch)
    assert rejected == dict.fromkeys(poison, "poison")
    assert dumps == {sample.id for sample in batch.samples} - poison
    assert engine.deaths <= 8 * len(places)
    assert len(list(tmp_path.glob("*.dump"))) == 64 - len(places)
    assert not redis.exists(names.suspicion_key("played", batch.id))


def test_a_batch_that_was_merely_there_loses_nobody(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two deaths that were not its own: the batch is probed, acquitted and extracted whole."""
    batch = Batch("played", tuple(make_sample(number, 5) for number in range(64)))
    engine = MortalEngine(set())
    play(monkeypatch, redis, tmp_path, engine)
    ids = [sample.id for sample in batch.samples]
    suspicion.write(redis, batch, suspicion.Suspicion().died(ids).died(ids))
    assert deliver(batch) == 1
    assert outcome(redis, batch) == (set(ids), {}) and engine.asked <= 8


def test_nobody_else_is_in_flight_during_a_probe(tmp_path: Path):
    """Who asks alone waits for those who share the engine, and is not overtaken by others who would share it."""
    told: list[str] = []
    shared = threading.Event()

    def share(name: str, seconds: float) -> None:
        with suspicion.turn(tmp_path, alone=False):
            told.append(f"{name} begins")
            shared.set()
            time.sleep(seconds)
            told.append(f"{name} ends")

    def alone() -> None:
        with suspicion.turn(tmp_path, alone=True):
            told.append("probe")

    first = threading.Thread(target=share, args=("first", 0.6))
    first.start()
    shared.wait(5)
    second = threading.Thread(target=alone)
    second.start()
    time.sleep(0.2)
    third = threading.Thread(target=share, args=("third", 0.0))
    third.start()
    for thread in (first, second, third):
        thread.join(10)
    assert told == ["first begins", "first ends", "probe", "third begins", "third ends"]
