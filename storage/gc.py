"""List, and with --yes remove, what interrupted uploads left: shards without manifest, parts of uploads."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

from eaglefeed.manifest import manifest_key, manifest_prefix, shard_key
from eaglefeed.progress import Progress, byte_size, duration
from eaglefeed.records import is_id
from eaglefeed.stores import Store, Unfinished
from storage.run_choice import add_run_arguments, chosen_run

EXAMPLE = "example: eaglefeed gc --run config/smollm2.toml --age-minutes 30 --yes"
DEFAULT_AGE_MINUTES = 60.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something in the store that no manifest names. ``unfinished`` where it is parts of an upload."""

    key: str
    num_bytes: int
    age_seconds: float
    unfinished: Unfinished | None = None

    @property
    def line(self) -> str:
        kind = "unfinished upload" if self.unfinished else "shard without manifest"
        return f"{kind:<22}  {byte_size(self.num_bytes):>10}  {duration(self.age_seconds):>8} old  {self.key}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="remove them")
    parser.add_argument(
        "--age-minutes",
        type=float,
        default=DEFAULT_AGE_MINUTES,
        metavar="N",
        help="leave alone what is younger: a shard is in the store shortly before its manifest (default %(default)g)",
    )


def main(parsed: argparse.Namespace) -> int:
    run = chosen_run(parsed)
    count = num_bytes = 0
    with Progress("gc", unit="leftovers", quiet=parsed.quiet) as progress:
        for leftover in leftovers(run.store, run.name, 60 * parsed.age_minutes):
            removed = parsed.yes and remove(run.store, run.name, leftover)
            print(("removed  " if removed else "") + leftover.line)
            count, num_bytes = count + 1, num_bytes + leftover.num_bytes
            progress.update(count, size=byte_size(num_bytes))
    hint = "" if parsed.yes or not count else "; --yes removes them"
    print(f"run {run.name} in {run.store.url}: {count:,} leftovers, {byte_size(num_bytes)}{hint}")
    return 0


def leftovers(store: Store, run: str, min_age_seconds: float) -> Iterator[Leftover]:
    """What is older than ``min_age_seconds`` and belongs to no manifest, streamed."""
    now = time.time()
    for found in _shards_without_manifest(store, run, now):
        if found.age_seconds >= min_age_seconds:
            yield found
    for parts in store.unfinished(f"{run}/"):
        if now - parts.started_at >= min_age_seconds:
            yield Leftover(parts.key, parts.num_bytes, now - parts.started_at, parts)


def remove(store: Store, run: str, leftover: Leftover) -> bool:
    """Remove it, unless a manifest has come in the meantime."""
    if leftover.unfinished is not None:
        store.discard(leftover.unfinished)
        return True
    if store.head(manifest_key(run, _batch_of(leftover.key))) is not None:
        return False
    store.delete(leftover.key)
    return True


def _shards_without_manifest(store: Store, run: str, now: float) -> Iterator[Leftover]:
    """Both listings come in the order of batch ids, so one pass over each is enough."""
    manifests = store.list(manifest_prefix(run))
    committed = ""
    for shard in store.list(shard_key(run, "").removesuffix(".safetensors")):
        batch = _batch_of(shard.key)
        while committed < batch:
            following = next(manifests, None)
            committed = _batch_of(following.key) if following else "~"
        if is_id(batch) and committed != batch:
            yield Leftover(shard.key, shard.num_bytes, now - shard.modified_at)


def _batch_of(key: str) -> str:
    return key.rpartition("/")[2].partition(".")[0]
