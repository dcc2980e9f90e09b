"""Exactly once, on token ids: what this command holds, what Redis knows, and what the store's manifests say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, cast

from redis import Redis

from config import names
from eaglefeed.progress import Progress
from eaglefeed.records import Sample, is_id
from eaglefeed.stores import Store
from storage import ledger
from storage.accounts import learn

LISTED_AT_ONCE = 1000
READ_AT_ONCE = 200


@dataclass(slots=True)
class Seen:
    """The samples of this command: waiting for a batch, and enqueued (as 64-bit halves of their ids).

    The halves only tell a repetition within the command from a sample that was there before it began.
    """

    waiting: set[str] = field(default_factory=set)
    enqueued: set[int] = field(default_factory=set)

    def settle(self, enqueued: Iterable[Sample], known: Iterable[Sample]) -> None:
        for sample in known:
            self.waiting.discard(sample.id)
        for sample in enqueued:
            self.waiting.discard(sample.id)
            self.enqueued.add(int(sample.id[:16], 16))

    def has_enqueued(self, sample: Sample) -> bool:
        return int(sample.id[:16], 16) in self.enqueued


def known_flags(redis: Redis, run: str, samples: Sequence[Sample]) -> list[bool]:
    """Which of the samples Redis knows, in one round trip."""
    if not samples:
        return []
    ids = [bytes.fromhex(sample.id) for sample in samples]
    flags = cast("list[Any]", redis.smismember(names.known_key(run), cast("list[str]", ids)))
    return [bool(flag) for flag in flags]


def seed_from_store(redis: Redis, store: Store, run: str, quiet: bool = True) -> int:
    """Make Redis know every sample of the store's manifests, stored or rejected; how many it had not known.

    Only manifests that Redis does not know are read, so a Redis that was never emptied costs one listing.
    """
    batch_ids = _unknown_batches(redis, store, run)
    first = next(batch_ids, None)
    if first is None:
        return 0
    manifests = ledger.read_manifests(store, run, chain([first], batch_ids))
    num_manifests = added = 0
    with Progress(f"{run}: reading manifests Redis does not know", unit="manifests", quiet=quiet) as progress:
        while group := list(islice(manifests, READ_AT_ONCE)):
            added += learn(redis, run, group)
            num_manifests += len(group)
            progress.update(num_manifests, samples=added)
    return added


def _unknown_batches(redis: Redis, store: Store, run: str) -> Iterator[str]:
    batch_ids = (name for name in ledger.batch_ids(store, run) if is_id(name))
    while group := list(islice(batch_ids, LISTED_AT_ONCE)):
        fields = cast("list[str]", [bytes.fromhex(batch_id) for batch_id in group])
        marks = cast("list[Any]", redis.hmget(names.batches_key(run), fields))
        yield from (batch_id for batch_id, mark in zip(group, marks, strict=True) if mark is None)
