"""What a store holds of a run: its identity, its index, and what is missing from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from eaglefeed.errors import CorruptData, UsageError
from eaglefeed.folding import fold
from eaglefeed.identity import RunIdentity
from eaglefeed.index import RunIndex, index_table_key
from eaglefeed.manifest import Manifest, manifest_key, manifest_prefix, run_key, shard_key
from eaglefeed.stores import Store, open_store
from eaglefeed.threads import in_order

_LISTED_KEYS = 20_000
_REQUESTS = 16
_BLOCK_MANIFESTS = 4096


@dataclass(frozen=True, slots=True)
class Gaps:
    """What a run's manifests promise and its store does not hold; all empty for a whole run.

    Attributes:
        missing_shards: batch ids whose manifest is there and whose shard is not.
        wrong_sizes: batch ids whose shard is not as long as its manifest says.
        missing_manifests: batch ids that the index holds and the store no longer does.
        lost_samples: how many fewer samples there are than when the run was closed.
    """

    missing_shards: tuple[str, ...] = ()
    wrong_sizes: tuple[str, ...] = ()
    missing_manifests: tuple[str, ...] = ()
    lost_samples: int = 0

    def __bool__(self) -> bool:
        return bool(self.missing_shards or self.wrong_sizes or self.missing_manifests or self.lost_samples)

    def sentence(self) -> str:
        """The numbers and the first three of each kind."""
        kinds = (
            (self.missing_shards, "shards missing"),
            (self.wrong_sizes, "shards of another size than their manifest says"),
            (self.missing_manifests, "manifests gone that the index still holds"),
        )
        parts = [
            f"{len(ids):,} {what} ({', '.join(ids[:3])}{', …' if len(ids) > 3 else ''})" for ids, what in kinds if ids
        ]
        if self.lost_samples:
            parts.append(f"{self.lost_samples:,} samples fewer than when the run was closed")
        return "; ".join(parts)


def locate(url: str, run: str | None) -> tuple[str, str]:
    """The store's URL and the run's name: ``url`` may be the store's with ``run``, or the run's own folder.

    Raises:
        UsageError: there is no run, or several and none was named; the message lists them.
    """
    if run is not None:
        return url, run
    parent, _, name = url.rstrip("/").rpartition("/")
    if not url.startswith("s3://"):
        path = Path(url.removeprefix("file://")).absolute()
        parent, name = str(path.parent), path.name
    if name and parent not in ("", "s3:/", "s3://") and open_store(parent).head(run_key(name)) is not None:
        return parent, name
    names = _run_names(url)
    if len(names) == 1:
        return url, names[0]
    if names:
        raise UsageError(f"{url} holds {len(names)} runs; name one with run=…: {', '.join(names)}")
    raise UsageError(f"{url}: no run there (no run.json below it)")


def read_identity(store: Store, run: str) -> RunIdentity:
    """Raises UsageError when the run is not there, CorruptData when its run.json is another run's."""
    try:
        identity = RunIdentity.from_json(store.get(run_key(run)))
    except FileNotFoundError as error:
        raise UsageError(f"{store.url}: no run {run!r} there (no {run_key(run)})") from error
    if identity.run != run:
        raise CorruptData(f"{store.url}/{run_key(run)} is the identity of run {identity.run!r}")
    return identity


def samples_at_close(store: Store, run: str) -> int | None:
    """How many samples were stored when the run was closed (``eaglefeed run-state close``), None while it is open.

    Raises CorruptData when the record is damaged.
    """
    key = f"{run}/closed.json"
    try:
        return int(json.loads(store.get(key))["stored"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{store.url}/{key} does not say how many samples were stored: {error}") from error


def read_index(store: Store, run: str) -> tuple[RunIndex, Gaps]:
    """The index with the manifests that are younger than it folded in, and what is missing.

    Costs one GET of the index, a listing of manifests and one of shards, and a GET for each younger manifest.
    """
    known = _stored_index(store, run)
    folded = known.known_batch_ids() if known else set()
    names = _batch_ids(info.key for info in store.list(manifest_prefix(run)))
    manifests = read_manifests(store, run, (batch_id for batch_id in names if batch_id not in folded))
    index = known or fold(run, ())
    while block := list(islice(manifests, _BLOCK_MANIFESTS)):
        index = fold(run, block, index)
    return index, _gaps(store, index, set(names))


def read_manifests(store: Store, run: str, batch_ids: Iterable[str]) -> Iterator[Manifest]:
    """The manifests of ``batch_ids`` in that order, several requests at once where a network lies between."""

    def read(batch_id: str) -> Manifest:
        key = manifest_key(run, batch_id)
        return Manifest.from_json(store.get(key), f"{store.url}/{key}")

    return in_order(read, batch_ids, _REQUESTS if store.url.startswith("s3://") else 1)


def _stored_index(store: Store, run: str) -> RunIndex | None:
    key = index_table_key(run)
    try:
        index = RunIndex.from_bytes(store.get(key), f"{store.url}/{key}")
    except FileNotFoundError:
        return None
    if index.run != run:
        raise CorruptData(f"{store.url}/{key} is the index of run {index.run!r}")
    return index


def _gaps(store: Store, index: RunIndex, manifests: set[str]) -> Gaps:
    prefix = shard_key(index.run, "").removesuffix(".safetensors")
    sizes = {info.key: info.num_bytes for info in store.list(prefix)}
    missing, wrong = [], []
    for shard, expected in enumerate(index.shard_bytes.tolist()):
        size = sizes.get(index.shard_key(shard))
        if size is None:
            missing.append(index.batch_id(shard))
        elif size != expected:
            wrong.append(index.batch_id(shard))
    return Gaps(tuple(missing), tuple(wrong), tuple(sorted(index.known_batch_ids() - manifests)))


def _batch_ids(keys: Iterable[str]) -> list[str]:
    return [key.rpartition("/")[2].removesuffix(".json") for key in keys if key.endswith(".json")]


def _run_names(url: str) -> list[str]:
    if not url.startswith("s3://"):
        return sorted(path.parent.name for path in Path(url.removeprefix("file://")).glob("*/run.json"))
    keys = islice(open_store(url).list(""), _LISTED_KEYS)
    return [info.key.partition("/")[0] for info in keys if info.key.count("/") == 1 and info.key.endswith("/run.json")]
