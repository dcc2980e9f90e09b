"""Exactly once, on token ids: what this command holds, what Redis knows, and what the store's manifests say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, cast

from redis import Redis
from redis.exceptions import WatchError

from config import counters, names
from eaglefeed.manifest import Manifest, manifest_prefix
from eaglefeed.progress import Progress
from eaglefeed.records import Sample, is_id
from eaglefeed.stores import Store

LISTED_AT_ONCE = 1000
STORE_MARK = b"store"


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
    added = 0
    keys = _unknown_manifests(redis, store, run)
    first = next(keys, None)
    if first is None:
        return 0
    with Progress(f"{run}: reading manifests Redis does not know", unit="manifests", quiet=quiet) as progress:
        for number, key in enumerate(chain([first], keys), 1):
            added += _learn(redis, run, Manifest.from_json(store.get(key), key))
            progress.update(number, samples=added)
    return added


def _unknown_manifests(redis: Redis, store: Store, run: str) -> Iterator[str]:
    prefix = manifest_prefix(run)
    names_of_batches = (info.key.removeprefix(prefix).removesuffix(".json") for info in store.list(prefix))
    batch_ids = (name for name in names_of_batches if is_id(name))
    while group := list(islice(batch_ids, LISTED_AT_ONCE)):
        fields = cast("list[str]", [bytes.fromhex(batch_id) for batch_id in group])
        known = cast("list[Any]", redis.hmget(names.batches_key(run), fields))
        yield from (f"{prefix}{batch_id}.json" for batch_id, mark in zip(group, known, strict=True) if mark is None)


def _learn(redis: Redis, run: str, manifest: Manifest) -> int:
    """Add a manifest's ids to the known ones and count the new as unique, in one transaction."""
    ids = [bytes.fromhex(sample.id) for sample in manifest.samples]
    ids += [bytes.fromhex(sample.id) for sample in manifest.rejected]
    with redis.pipeline() as pipeline:
        pipe: Any = pipeline
        while True:
            try:
                pipe.watch(names.known_key(run))
                known = pipe.smismember(names.known_key(run), ids) if ids else []
                num_new = len(set(ids)) - sum(map(bool, known))
                pipe.multi()
                if ids:
                    pipe.sadd(names.known_key(run), *ids)
                pipe.hset(names.batches_key(run), bytes.fromhex(manifest.batch_id), STORE_MARK)
                counters.count(pipe, run, {"unique": num_new, "batches": int(num_new > 0)})
                pipe.execute()
            except WatchError:
                continue
            return num_new
