"""The index of a run: every stored sample's length and place, so that a trainer opens a million samples with one GET.

``<run>/index.safetensors`` is read with numpy and safetensors alone, which is all the wheel requires; the Parquet file
of ``eaglefeed index`` holds the same rows for other tools. Where neither exists, the manifests are folded.

Legend: ``N`` samples, ``S`` shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from eaglefeed.errors import CorruptData
from eaglefeed.manifest import StoredSample, shard_key

INDEX_VERSION = 1
CHECKSUM = "S24"

IntArray = npt.NDArray[np.int64]


def index_table_key(run: str) -> str:
    return f"{run}/index.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class RunIndex:
    """Columns, one row a stored sample, in the order of (batch id, place in the shard).

    Attributes:
        ids: uint8 ``[N, 16]``, the sample ids' bytes.
        num_tokens, num_supervised_tokens: int64 ``[N]``.
        shards: int64 ``[N]``, the row's number in ``batch_ids``.
        starts, ends: int64 ``[N]``, the byte range in the shard.
        raw_checksums, stored_checksums: ``S24 [N]``, as in the manifest.
        batch_ids: uint8 ``[S, 16]``, of every manifest with a shard, ascending.
        shard_bytes: int64 ``[S]``.
        num_rejected: samples that the manifests record as refused.
        num_manifests: manifests folded in, those without a shard included.
    """

    run: str
    ids: npt.NDArray[np.uint8]
    num_tokens: IntArray
    num_supervised_tokens: IntArray
    shards: IntArray
    starts: IntArray
    ends: IntArray
    raw_checksums: npt.NDArray[np.bytes_]
    stored_checksums: npt.NDArray[np.bytes_]
    batch_ids: npt.NDArray[np.uint8]
    shard_bytes: IntArray
    num_rejected: int = 0
    num_manifests: int = 0
    empty_batch_ids: tuple[str, ...] = ()
    """Batches whose every sample was refused: a manifest and no shard."""

    def __len__(self) -> int:
        return len(self.num_tokens)

    def sample_id(self, row: int) -> str:
        return bytes(self.ids[row]).hex()

    def stored_sample(self, row: int) -> StoredSample:
        """The manifest's entry of a row."""
        tokens = int(self.num_tokens[row])
        return StoredSample(
            self.sample_id(row),
            tokens,
            int(self.num_supervised_tokens[row]),
            tokens,
            int(self.starts[row]),
            int(self.ends[row]),
            self.raw_checksums[row].decode(),
            self.stored_checksums[row].decode(),
        )

    def batch_id(self, shard: int) -> str:
        return bytes(self.batch_ids[shard]).hex()

    def shard_key(self, shard: int) -> str:
        return shard_key(self.run, self.batch_id(shard))

    def known_batch_ids(self) -> set[str]:
        """All folded manifests' batch ids, those without a shard included."""
        return {row.tobytes().hex() for row in self.batch_ids} | set(self.empty_batch_ids)

    def rows_of(self, sample_ids: Iterable[str]) -> IntArray:
        """The rows of ``sample_ids``, in their order; raises KeyError naming the first that is not stored."""
        order = np.argsort(as_keys(self.ids), kind="stable")
        keys = as_keys(self.ids)[order]
        wanted = np.frombuffer(b"".join(bytes.fromhex(each) for each in sample_ids), np.uint8).reshape(-1, 16)
        places = np.searchsorted(keys, as_keys(wanted))
        found = places < len(keys)
        found[found] = keys[places[found]] == as_keys(wanted)[found]
        if not found.all():
            raise KeyError(f"sample {wanted[int(np.argmin(found))].tobytes().hex()} is not in run {self.run!r}")
        return order[places].astype(np.int64)

    def to_bytes(self) -> bytes:
        """The index file: a safetensors file whose tensors are the columns."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in tensors.items() if isinstance(value, np.ndarray)}
        for name in ("raw_checksums", "stored_checksums"):
            arrays[name] = arrays[name].astype(CHECKSUM).view(np.uint8).reshape(-1, 24)
        metadata = {
            "version": str(INDEX_VERSION),
            "run": self.run,
            "num_rejected": str(self.num_rejected),
            "num_manifests": str(self.num_manifests),
            "empty_batch_ids": json.dumps(self.empty_batch_ids),
        }
        data: bytes = safetensors.numpy.save(
            {name: np.ascontiguousarray(value) for name, value in arrays.items()}, metadata
        )
        return data

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> RunIndex:
        """Raises CorruptData naming ``where`` when the columns are damaged or of a newer version."""
        try:
            metadata = _metadata(data)
            if metadata["version"] != str(INDEX_VERSION):
                raise CorruptData(f"{where}: version {metadata['version']}; this eaglefeed reads {INDEX_VERSION}")
            columns: dict[str, Any] = dict(safetensors.numpy.load(data))
            for name in ("raw_checksums", "stored_checksums"):
                columns[name] = np.ascontiguousarray(columns[name]).view(CHECKSUM).reshape(-1)
            index = cls(
                run=metadata["run"],
                num_rejected=int(metadata["num_rejected"]),
                num_manifests=int(metadata["num_manifests"]),
                empty_batch_ids=tuple(json.loads(metadata["empty_batch_ids"])),
                **columns,
            )
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CorruptData(f"{where} is not an index: {error}; `eaglefeed index` writes it anew") from error
        index._check_columns(where)
        return index

    def _check_columns(self, where: str) -> None:
        rows = {len(column) for column in (self.ids, self.shards, self.starts, self.ends, self.stored_checksums)}
        sound = rows == {len(self)} and len(self.batch_ids) == len(self.shard_bytes)
        if sound and len(self):
            sound = int(self.shards.min()) >= 0 and int(self.shards.max()) < len(self.batch_ids)
            sound = sound and int(self.num_tokens.min()) > 0 and bool((self.starts < self.ends).all())
        if not sound:
            raise CorruptData(f"{where}: its columns disagree; `eaglefeed index` writes it anew")


def as_keys(ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    """Ids uint8 ``[N, 16]`` as ``S16 [N]``, to be sorted and looked up."""
    return np.ascontiguousarray(ids).view("S16").reshape(-1)


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data), 1 << 24):
        raise ValueError(f"a header of {length} bytes")
    metadata: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return metadata
