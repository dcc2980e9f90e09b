"""The audit: what was enqueued against what the store holds, sample by sample, in one pass over the manifests."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from redis import Redis

from config import counters, names
from eaglefeed.errors import CorruptData
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import Manifest, shard_key
from eaglefeed.stores import Store
from eaglefeed.threads import in_order
from storage import ledger
from storage.audit_report import AuditReport, Problem
from storage.manifest_check import CheckedManifest, check_manifest

_SCAN_COUNT = 10_000


@dataclass(slots=True)
class _Tally:
    """What has been seen so far: 16 bytes a sample, so that a million fit anywhere."""

    stored: bytearray = field(default_factory=bytearray)
    rejected: bytearray = field(default_factory=bytearray)
    num_tokens: array[int] = field(default_factory=lambda: array("q"))
    raw_bytes: int = 0
    stored_bytes: int = 0
    short: int = 0
    num_manifests: int = 0
    problems: list[Problem] = field(default_factory=list)


def audit(
    store: Store,
    run: str,
    redis: Redis | None = None,
    deep: bool = False,
    on_manifest: Callable[[int, int], None] = lambda manifests, samples: None,
) -> AuditReport:
    """Count a run.

    Args:
        redis: knows what was enqueued; without it only what the manifests name can be counted.
        deep: read every shard back, decode it and compare its checksums and token ids.
        on_manifest: called with the numbers of manifests and stored samples so far.

    Raises:
        StoreUnavailable, EnvironmentFault: the store cannot be read.
    """
    tally = _Tally()
    identity = _identity(store, run, tally)
    shards = _Shards(store, run)
    sized = ((manifest, shards.size_of(manifest.batch_id)) for manifest in _manifests(store, run, tally))
    threads = (os.cpu_count() or 1) if deep else 1
    for checked in in_order(lambda each: check_manifest(store, identity, *each, deep), sized, threads):
        _add(tally, checked)
        on_manifest(tally.num_manifests, len(tally.stored) // 16)
    return _report(run, tally, redis)


def _identity(store: Store, run: str, tally: _Tally) -> RunIdentity | None:
    try:
        return RunIdentity.from_json(store.get(f"{run}/run.json"))
    except FileNotFoundError:
        tally.problems.append(Problem("run", f"{store.url}/{run}/run.json is not there"))
    except CorruptData as error:
        tally.problems.append(Problem("run", f"{store.url}/{run}: {error}"))
    return None


def _manifests(store: Store, run: str, tally: _Tally) -> Iterator[Manifest]:
    for key, text in ledger.read_texts(store, run, ledger.batch_ids(store, run)):
        tally.num_manifests += 1
        where = f"{store.url}/{key}"
        try:
            manifest = Manifest.from_json(text, where)
            if manifest.run != run or not key.endswith(f"/{manifest.batch_id}.json"):
                raise CorruptData(f"{where} is the manifest of batch {manifest.batch_id} of run {manifest.run!r}")
            yield manifest
        except CorruptData as error:
            tally.problems.append(Problem("manifest", str(error)))


class _Shards:
    """Sizes of the run's shards, listed along with the manifests: both come in the order of batch ids."""

    def __init__(self, store: Store, run: str) -> None:
        prefix = shard_key(run, "").removesuffix(".safetensors")
        self._listed = store.list(prefix)
        self._batch, self._size = "", -1

    def size_of(self, batch_id: str) -> int:
        """Bytes of the batch's shard, -1 where there is none. Ask in order."""
        while self._batch < batch_id:
            found = next(self._listed, None)
            if found is None:
                self._batch, self._size = "~", -1
            else:
                self._batch = found.key.rpartition("/")[2].removesuffix(".safetensors")
                self._size = found.num_bytes
        return self._size if self._batch == batch_id else -1


def _add(tally: _Tally, checked: CheckedManifest) -> None:
    manifest = checked.manifest
    tally.raw_bytes += manifest.raw_bytes
    tally.stored_bytes += manifest.shard_bytes
    tally.short += checked.num_short
    tally.problems += checked.problems
    tally.rejected += b"".join(bytes.fromhex(record.id) for record in manifest.rejected)
    tally.stored += b"".join(bytes.fromhex(sample.id) for sample in checked.whole)
    tally.num_tokens.extend(sample.num_tokens for sample in checked.whole)


def _report(run: str, tally: _Tally, redis: Redis | None) -> AuditReport:
    stored, first, copies = np.unique(_ids(tally.stored), return_index=True, return_counts=True)
    rejected = np.setdiff1d(_ids(tally.rejected), stored)
    seen = np.union1d(stored, rejected)
    known, unique_from = _known(redis, run)
    if known is None:
        known = seen
    missing = np.setdiff1d(known, seen)
    for twice, count in zip(stored[copies > 1], copies[copies > 1], strict=True):
        tally.problems.append(Problem("duplicate", f"sample {_hex(twice)} is stored {count} times"))
    tally.problems += [Problem("missing", f"sample {_hex(one)} was enqueued and is not stored") for one in missing]
    return AuditReport(
        run=run,
        unique=len(np.union1d(known, seen)),
        stored=len(stored),
        rejected=len(rejected),
        missing=len(missing),
        duplicate=int((copies - 1).sum()),
        short=tally.short,
        tokens=int(np.array(tally.num_tokens, np.int64)[first].sum()),
        raw_bytes=tally.raw_bytes,
        stored_bytes=tally.stored_bytes,
        unique_from=unique_from,
        problems=tuple(tally.problems),
    )


def _known(redis: Redis | None, run: str) -> tuple[npt.NDArray[np.bytes_] | None, str]:
    """The ids that Redis knows to be enqueued, and where they were counted."""
    if redis is None:
        return None, "counted from the manifests: no Redis was asked, so a sample that was never stored is not seen"
    members: Iterable[bytes] = redis.sscan_iter(names.known_key(run), count=_SCAN_COUNT)
    known = _ids(bytearray().join(members))
    if not len(known) and not counters.read(redis, run).get("unique"):
        return None, "counted from the manifests: this Redis knows nothing of the run"
    return np.unique(known), "counted by the producer, in Redis"


def _ids(joined: bytes | bytearray) -> npt.NDArray[np.bytes_]:
    return cast("npt.NDArray[np.bytes_]", np.frombuffer(bytes(joined), "S16"))


def _hex(one: Any) -> str:
    return bytes(one).ljust(16, b"\0").hex()  # numpy drops zero bytes at the end
