"""The producer's work as the list of its steps: rows, samples, once, batches, jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from redis import Redis

from eaglefeed.records import Sample
from producer.batches import Batcher
from producer.dedup import Seen, known_flags
from producer.enqueue import Claim, Enqueuer
from producer.tally import Tally
from producer.tokens import Prepared


class Rejects(Protocol):
    def add(self, row: Prepared) -> None: ...


class Production:
    """Takes prepared rows in their order. A row is settled when it is rejected, repeated or enqueued."""

    def __init__(
        self,
        redis: Redis,
        enqueuer: Enqueuer,
        batch_tokens: int,
        rejects: Rejects,
        on_new: Callable[[Prepared], None] = lambda row: None,
    ) -> None:
        self.redis, self.enqueuer, self.rejects, self.on_new = redis, enqueuer, rejects, on_new
        self.batcher = Batcher(batch_tokens)
        self.seen = Seen()
        self.tally = Tally()

    def take(self, rows: Iterable[Prepared]) -> None:
        """Settle or hold a chunk of rows."""
        usable = self._without_rejects(rows)
        known = known_flags(self.redis, self.enqueuer.run, [sample for _, sample in usable])
        for (row, sample), is_known in zip(usable, known, strict=True):
            is_mine = sample.id in self.seen.waiting or self.seen.has_enqueued(sample)
            if is_known or is_mine:
                self.tally.repeat(was_stored=not is_mine)
            else:
                self._hold(row, sample)

    def finish(self) -> None:
        """Enqueue what no batch was full with."""
        for samples in self.batcher.rest():
            self._enqueue(samples)

    def _without_rejects(self, rows: Iterable[Prepared]) -> list[tuple[Prepared, Sample]]:
        usable = []
        for row in rows:
            self.tally.see(row)
            if row.sample is not None:
                usable.append((row, row.sample))
            else:
                self.tally.reject(row)
                self.rejects.add(row)
        return usable

    def _hold(self, row: Prepared, sample: Sample) -> None:
        self.on_new(row)
        self.seen.waiting.add(sample.id)
        full = self.batcher.add(sample)
        if full:
            self._enqueue(full)

    def _enqueue(self, samples: list[Sample]) -> None:
        self.enqueuer.enqueue(samples, self._settle)

    def _settle(self, claim: Claim) -> None:
        self.seen.settle(claim.enqueued, claim.known)
        if claim.enqueued:
            self.tally.accept(claim.enqueued)
        for _ in claim.known:
            self.tally.repeat(was_stored=True)
