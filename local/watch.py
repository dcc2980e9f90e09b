"""Live progress of a run on this machine, from the same counters as the page, until nothing is pending."""

from __future__ import annotations

import time
from dataclasses import dataclass

from redis import Redis

from config import counters, queues
from eaglefeed.progress import Progress, byte_size
from local.production import ProducerChild
from local.stack import Stack

_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Pending:
    """Jobs of a run that are not done: waiting or in a worker's hands, for the engine and for the store."""

    extract: int
    store: int
    dead: int

    @property
    def jobs(self) -> int:
        return self.extract + self.store

    @classmethod
    def read(cls, redis: Redis, run: str, node: str) -> Pending:
        """One transaction, so that a job on its way from one queue to the other is not missed."""
        waiting = [queues.extract_queue(redis), queues.store_queue(redis, node)]
        with redis.pipeline() as pipe:
            for queue in waiting:
                pipe.llen(queue.key)
                pipe.llen(f"{queue.key}:intermediate")
                pipe.zcard(queue.started_job_registry.key)
                pipe.zcard(queue.failed_job_registry.key)
            found = pipe.execute()
        return cls(sum(found[0:3]), sum(found[4:7]), found[3] + found[7])


def watch(redis: Redis, run: str, node: str, producer: ProducerChild, stack: Stack, quiet: bool) -> Pending:
    """Return when the producer has ended and nothing is pending.

    Raises what the producer failed with; EnvironmentFault when a service keeps ending.
    """
    first = counters.read(redis, run)
    with Progress(run, unit="samples", quiet=quiet) as progress:
        progress.start_from(_settled(first))
        while True:
            pending = Pending.read(redis, run, node)
            _show(progress, counters.read(redis, run), pending)
            if producer.is_done and not pending.jobs:
                producer.check()
                return pending
            stack.tend()
            time.sleep(_POLL_SECONDS)


def _show(progress: Progress, counted: dict[str, int], pending: Pending) -> None:
    progress.total = counted.get("unique")
    stored = counted.get("stored_bytes", 0)
    progress.update(
        _settled(counted),
        tokens=f"{counted.get('tokens', 0):,}",
        stored=byte_size(stored) + (f" ({counted['raw_bytes'] / stored:.2f}x smaller)" if stored else ""),
        rejected=counted.get("rejected", 0),
        queued=f"{pending.extract} to extract, {pending.store} to store",
        **({"dead_letters": pending.dead} if pending.dead else {}),
    )


def _settled(counted: dict[str, int]) -> int:
    return counted.get("stored", 0) + counted.get("rejected", 0)
