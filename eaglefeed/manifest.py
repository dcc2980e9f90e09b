"""The manifest of a batch: its existence in the store is the commit, and manifests are the ledger."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from eaglefeed.errors import CorruptData
from eaglefeed.records import is_id

MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample in the shard.

    Attributes:
        num_rows: rows of states, equal to ``num_tokens`` or the sample would not be here.
        start, end: byte range in the shard file that holds all of the sample, for one range GET.
        raw_checksum: of the raw states' bytes (as in the dump), hex.
        stored_checksum: of the bytes ``start..end`` of the shard, hex.
    """

    id: str
    num_tokens: int
    num_supervised_tokens: int
    num_rows: int
    start: int
    end: int
    raw_checksum: str
    stored_checksum: str


@dataclass(frozen=True, slots=True)
class RejectedSampleRecord:
    """One sample that was refused, and why; ``num_rows`` is what the engine gave, -1 where it gave nothing."""

    id: str
    num_tokens: int
    num_rows: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a batch became. ``shard`` is empty when every sample of the batch was rejected."""

    run: str
    batch_id: str
    shard: str
    shard_bytes: int
    shard_checksum: str
    raw_bytes: int
    samples: tuple[StoredSample, ...]
    rejected: tuple[RejectedSampleRecord, ...] = ()
    node: str = ""
    engine: dict[str, Any] = field(default_factory=dict)
    created_at: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum(sample.num_tokens for sample in self.samples)

    def require_types(self) -> None:
        """Raises TypeError for a value that is not of its kind: JSON may hold anything anywhere."""
        _require(self, ("run", "batch_id", "shard", "shard_checksum", "node"), ("shard_bytes", "raw_bytes"))
        if not isinstance(self.engine, dict) or type(self.created_at) not in (int, float):
            raise TypeError(f"engine {self.engine!r}, created at {self.created_at!r}")
        for sample in self.samples:
            _require(sample, ("id", "raw_checksum", "stored_checksum"), _STORED_COUNTS)
        for refused in self.rejected:
            _require(refused, ("id", "reason", "detail"), ("num_tokens",))
            if type(refused.num_rows) is not int:
                raise TypeError(f"num_rows is {refused.num_rows!r}")

    def to_json(self) -> bytes:
        return json.dumps({"schema_version": MANIFEST_VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes | str, where: str = "manifest") -> Manifest:
        """Raises CorruptData naming ``where``, for a damaged manifest or one of a newer version."""
        if len(text) > MAX_MANIFEST_BYTES:
            raise CorruptData(f"{where}: a manifest of {len(text)} bytes")
        try:
            record: dict[str, Any] = json.loads(text)
            version = record.pop("schema_version")
            if version != MANIFEST_VERSION:
                raise CorruptData(f"{where}: schema version {version}; this eaglefeed reads {MANIFEST_VERSION}")
            record["samples"] = tuple(StoredSample(**sample) for sample in record["samples"])
            record["rejected"] = tuple(RejectedSampleRecord(**sample) for sample in record["rejected"])
            manifest = cls(**record)
            manifest.require_types()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptData(f"{where} is not a manifest: {error}") from error
        if not is_id(manifest.batch_id) or not all(is_id(sample.id) for sample in manifest.samples):
            raise CorruptData(f"{where} names something that is not an id")
        return manifest


_STORED_COUNTS = ("num_tokens", "num_supervised_tokens", "num_rows", "start", "end")


def _require(record: object, texts: tuple[str, ...], counts: tuple[str, ...]) -> None:
    for name in texts:
        if type(value := getattr(record, name)) is not str:
            raise TypeError(f"{name} is {value!r}")
    for name in counts:
        if type(value := getattr(record, name)) is not int or value < 0:
            raise TypeError(f"{name} is {value!r}")


def run_key(run: str) -> str:
    return f"{run}/run.json"


def shard_key(run: str, batch_id: str) -> str:
    return f"{run}/shards/{batch_id}.safetensors"


def manifest_prefix(run: str) -> str:
    return f"{run}/manifests/"


def manifest_key(run: str, batch_id: str) -> str:
    return f"{run}/manifests/{batch_id}.json"


def norm_key(run: str) -> str:
    """The final norm's weight, epsilon and kind, from which a post-norm final state is computed."""
    return f"{run}/final_norm.safetensors"


def index_key(run: str) -> str:
    return f"{run}/index.parquet"
