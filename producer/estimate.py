"""What a run will take: bytes, requests, memory, time and money, from counted tokens.

Legend: ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from config.run import RunSettings, SpoolSettings
from eaglefeed.identity import RunIdentity
from eaglefeed.progress import byte_size, duration
from eaglefeed.records import Batch, Sample
from eaglefeed.stores import Store
from producer.batches import Batcher
from storage import ledger
from storage.file_system import disk_usage

USUAL_RATIOS = {"lossless": 1.49, "raw": 1.0, "fp8_per_token": 2.0}
"""Raw by stored bytes: the codec's figure on two real models (docs/operations.md, Sizing); fp8 halves bf16."""

KNOWN_SAMPLE_BYTES = 72
JOB_BYTES = 1_500
BATCH_RECORD_BYTES = 120
"""Redis memory of a known sample, of a queued job beside its payload, and of a batch's mark."""

MEASURED_MANIFESTS = 200
WEIGHED_BATCHES = 16
TERABYTE = 10**12


@dataclass(frozen=True, slots=True)
class Prices:
    """What the person says; 0 = not said."""

    tokens_per_second: float = 0.0
    gpu_hour: float = 0.0
    tb_month: float = 0.0
    gpus: int = 1
    months: float = 1.0


@dataclass(slots=True)
class Volume:
    """Counts of unique samples, as the producer would enqueue them."""

    run: str
    batch_tokens: int
    samples: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    longest: int = 0
    batches: int = 0
    largest_batch_tokens: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    payload_bytes: list[int] = field(default_factory=list)
    _batcher: Batcher = field(init=False)

    def __post_init__(self) -> None:
        self._batcher = Batcher(self.batch_tokens)

    def add(self, sample: Sample) -> None:
        self.samples += 1
        self.tokens += sample.num_tokens
        self.supervised_tokens += sample.num_supervised_tokens
        self.longest = max(self.longest, sample.num_tokens)
        self.histogram[max(sample.num_tokens - 1, 0).bit_length()] += 1
        full = self._batcher.add(sample)
        if full:
            self._close(full)

    def finish(self) -> None:
        for samples in self._batcher.rest():
            self._close(samples)

    def _close(self, samples: list[Sample]) -> None:
        self.batches += 1
        self.largest_batch_tokens = max(self.largest_batch_tokens, sum(sample.num_tokens for sample in samples))
        if len(self.payload_bytes) < WEIGHED_BATCHES:
            payload = Batch(self.run, tuple(samples)).to_payload()
            # RQ's zlib takes back about what base64 added.
            self.payload_bytes.append(round(0.76 * (len(payload["tokens"]) + len(payload["masks"]))))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The figures of a plan. ``ratio_source`` says whether the codec's ratio was measured on this run's shards."""

    samples: int
    tokens: int
    bytes_per_token: int
    raw_bytes: int
    ratio: float
    ratio_source: str
    stored_bytes: int
    shards: int
    s3_requests: int
    redis_bytes: int
    hours: float
    gpu_cost: float
    store_cost: float
    warnings: tuple[str, ...]


def estimate(
    volume: Volume, settings: RunSettings, identity: RunIdentity, measured: float | None, prices: Prices
) -> Estimate:
    """Arithmetic over a counted volume; ``measured`` is the codec's ratio on shards of this run, if there are any."""
    ratio = measured or USUAL_RATIOS[settings.store.encoding]
    raw = volume.tokens * identity.bytes_per_token
    stored = round(raw / ratio)
    hours = volume.tokens / prices.tokens_per_second / 3600 / prices.gpus if prices.tokens_per_second else 0.0
    return Estimate(
        samples=volume.samples,
        tokens=volume.tokens,
        bytes_per_token=identity.bytes_per_token,
        raw_bytes=raw,
        ratio=round(ratio, 3),
        ratio_source="measured on this run's shards" if measured else "the usual figure, not yet measured here",
        stored_bytes=stored,
        shards=volume.batches,
        s3_requests=_requests(volume, stored, settings.store.part_bytes),
        redis_bytes=_redis_bytes(volume, settings.data.max_queued_batches),
        hours=hours,
        gpu_cost=hours * prices.gpus * prices.gpu_hour,
        store_cost=stored / TERABYTE * prices.tb_month * prices.months,
        warnings=tuple(_warnings(volume, settings, identity, stored, prices)),
    )


def measured_ratio(store: Store, run: str) -> float | None:
    """Raw by stored bytes over the run's first manifests; None when it has none."""
    raw = stored = 0
    ids = islice(ledger.batch_ids(store, run), MEASURED_MANIFESTS)
    for manifest in ledger.read_manifests(store, run, ids):
        if manifest.shard:
            raw += manifest.raw_bytes
            stored += manifest.shard_bytes
    return raw / stored if stored else None


def _requests(volume: Volume, stored_bytes: int, part_bytes: int) -> int:
    """Each shard: one PUT, or its parts and two more; a HEAD; its manifest's PUT."""
    if not volume.batches:
        return 0
    parts = -(-stored_bytes // volume.batches // part_bytes)
    upload = 1 if parts <= 1 else parts + 2
    return volume.batches * (upload + 2)


def _redis_bytes(volume: Volume, max_queued_batches: int) -> int:
    queued = min(volume.batches, max_queued_batches)
    payload = sum(volume.payload_bytes) / len(volume.payload_bytes) if volume.payload_bytes else 0
    known = volume.samples * KNOWN_SAMPLE_BYTES + volume.batches * BATCH_RECORD_BYTES
    return round(known + queued * (payload + JOB_BYTES))


def _warnings(
    volume: Volume, settings: RunSettings, identity: RunIdentity, stored_bytes: int, prices: Prices
) -> list[str]:
    warnings = _spool_warnings(volume, settings, identity)
    if not settings.store.url.startswith("s3://"):
        free = _free_bytes(Path(settings.store.url.removeprefix("file://")))
        if free < stored_bytes:
            warnings.append(
                f"the store {settings.store.url} has {byte_size(free)} free and the shards take "
                f"{byte_size(stored_bytes)}: choose another disk or s3:// with --store"
            )
    rate = prices.tokens_per_second * identity.bytes_per_token
    if rate and (seconds := settings.spool.max_bytes * settings.spool.high_mark / rate) < 60:
        warnings.append(f"the spool holds {duration(seconds)} of states: a store that is away longer stops the GPU")
    return warnings


def _spool_warnings(volume: Volume, settings: RunSettings, identity: RunIdentity) -> list[str]:
    budget = _spool_budget(settings.spool)
    batch_bytes = volume.largest_batch_tokens * identity.bytes_per_token
    needed = batch_bytes * (settings.workers.extract + settings.workers.store)
    if needed <= budget * settings.spool.high_mark:
        return []
    return [
        f"the spool {settings.spool.path} may hold {byte_size(budget)}, and the batches under way at once take "
        f"{byte_size(needed)} ({settings.workers.extract} extract and {settings.workers.store} store workers, "
        f"{byte_size(batch_bytes)} each): raise spool.max_bytes, or lower data.batch_tokens or max_length"
    ]


def _spool_budget(spool: SpoolSettings) -> int:
    """The smaller of the setting and what the disk lets it have."""
    used, usable = disk_usage(_existing(Path(spool.path).expanduser()))
    allowed = usable * spool.max_disk_percent / 100 - used
    return max(0, min(spool.max_bytes, int(allowed)))


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(_existing(path.expanduser())).free


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def histogram_rows(histogram: Counter[int]) -> list[dict[str, Any]]:
    """Samples by length, each row up to twice as long as the one before."""
    steps = range(min(histogram), max(histogram) + 1) if histogram else range(0)
    return [{"up_to_tokens": 1 << step, "samples": histogram[step]} for step in steps]
