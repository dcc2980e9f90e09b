"""Which samples of a batch may have ended an engine: kept in Redis, narrowed by halves, until one is found or none.

A batch is suspected after two deaths of an engine while it was in flight. Then halves of it are asked for, alone on
the engine: the half that ends it holds the poison; of a half that does not, all are cleared. A single sample that ends
the engine alone is poison. Of 64 samples that takes six probes, and the deaths are eight at most with the first two.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from redis import Redis

from config import names
from eaglefeed.manifest import RejectedSampleRecord
from eaglefeed.records import Batch, is_id

DEATHS_BEFORE_BISECTION = 2
TTL_SECONDS = 7 * 24 * 3600
POISON = "poison"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What is known of one batch.

    Attributes:
        deaths: of engines with the batch in flight, since something was last found out.
        suspects: sample ids one of which is poison, if any is; () while nobody is suspected.
        poison: sample ids that have ended an engine alone.
    """

    deaths: int = 0
    suspects: tuple[str, ...] = ()
    poison: tuple[str, ...] = ()

    @property
    def is_narrowing(self) -> bool:
        return bool(self.suspects)

    def probe(self) -> tuple[str, ...]:
        """The samples to ask for next: half of the suspects, or the last one."""
        return self.suspects[: max(1, len(self.suspects) // 2)]

    def died(self, in_flight: Sequence[str]) -> Suspicion:
        """An engine has ended while these samples, and no others of the batch, were in flight."""
        deaths = self.deaths + 1
        if self.is_narrowing and len(in_flight) == 1:
            return Suspicion(poison=(*self.poison, *in_flight))
        if self.is_narrowing or deaths >= DEATHS_BEFORE_BISECTION:
            return replace(self, deaths=deaths, suspects=tuple(in_flight))
        return replace(self, deaths=deaths)

    def survived(self, probed: Sequence[str]) -> Suspicion:
        """The engine lives after a probe: its samples are cleared; with nobody left, something else was to blame."""
        left = tuple(sample for sample in self.suspects if sample not in set(probed))
        return replace(self, suspects=left, deaths=self.deaths if left else 0)


def read(redis: Redis, batch: Batch) -> Suspicion:
    """What Redis remembers of the batch; samples it does not hold are left out."""
    text = cast("bytes | None", redis.get(names.suspicion_key(batch.run, batch.id)))
    if not text:
        return Suspicion()
    record: dict[str, Any] = json.loads(text)
    held = {sample.id for sample in batch.samples}
    kept = {name: tuple(each for each in record[name] if is_id(each) and each in held) for name in _LISTS}
    return Suspicion(int(record["deaths"]), **kept)


def write(redis: Redis, batch: Batch, suspicion: Suspicion) -> None:
    redis.set(names.suspicion_key(batch.run, batch.id), json.dumps(asdict(suspicion)), ex=TTL_SECONDS)


def forget(redis: Redis, batch: Batch) -> None:
    redis.delete(names.suspicion_key(batch.run, batch.id))


def rejected(batch: Batch, suspicion: Suspicion) -> list[RejectedSampleRecord]:
    """The batch's poison, as the manifest names it."""
    detail = "ended the engine each time it was in flight, at last alone; found by bisection of its batch"
    return [
        RejectedSampleRecord(sample.id, sample.num_tokens, -1, POISON, detail)
        for sample in batch.samples
        if sample.id in suspicion.poison
    ]


@contextmanager
def turn(folder: Path, alone: bool) -> Iterator[None]:
    """A share of the node's engine; ``alone``: no other worker's batch is in flight, or the wrong one is suspected."""
    with (folder / ".gate").open("w") as gate, (folder / ".turn").open("w") as turns:
        fcntl.flock(gate, fcntl.LOCK_EX)  # whoever waits to be alone is not overtaken
        fcntl.flock(turns, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


_LISTS = ("suspects", "poison")
