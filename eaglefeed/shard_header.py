"""A shard's safetensors header: what each sample is, where it lies, and a checksum over the header itself.

The header must stand before data whose sizes are not known yet, so room is kept for the longest it can become and the
rest is blanks, which safetensors allows.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from eaglefeed import __version__
from eaglefeed.errors import CorruptData
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import StoredSample
from eaglefeed.records import is_id

FORMAT = "eaglefeed-shard"
FORMAT_VERSION = 1
MAX_HEADER_BYTES = 100_000_000
"""safetensors refuses a longer one."""

PREFIX_BYTES = 8
_ALIGNMENT = 64
_LARGEST = 10**15 - 1
_NO_CHECKSUM = b'"header_crc32":"00000000"'
_CHECKSUM = re.compile(rb'"header_crc32":"([0-9a-f]{8})"')


@dataclass(frozen=True, slots=True)
class ShardSample:
    """A sample as its shard describes it: the manifest's entry, the states' shape, each tensor's own checksum."""

    stored: StoredSample
    shape: tuple[int, int, int]
    encoding: str
    tokens_checksum: str
    mask_checksum: str
    states_checksum: str


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """Everything a shard says before its data."""

    identity: RunIdentity
    batch_id: str
    encoding: str
    samples: tuple[ShardSample, ...]


def reserved_bytes(header: ShardHeader) -> int:
    """Bytes to leave before the data, length prefix included, for a header whose numbers are not known yet."""
    longest = len(_render(header, widest=True))
    return -(-(PREFIX_BYTES + longest) // _ALIGNMENT) * _ALIGNMENT


def pack_header(header: ShardHeader, num_bytes: int) -> bytes:
    """The first ``num_bytes`` of the shard."""
    text = _render(header, widest=False)
    blank = num_bytes - PREFIX_BYTES - len(text)
    if blank < 0 or num_bytes > MAX_HEADER_BYTES:
        raise ValueError(f"a shard header of {len(text)} bytes in {num_bytes}")
    whole = struct.pack("<Q", num_bytes - PREFIX_BYTES) + text + b" " * blank
    return whole.replace(_NO_CHECKSUM, b'"header_crc32":"%08x"' % zlib.crc32(whole), 1)


def unpack_header(whole: bytes, where: str) -> ShardHeader:
    """Read the bytes before the data; raises CorruptData naming ``where``, and the version when it is newer."""
    text = whole[PREFIX_BYTES:]
    if not text.startswith(b'{"__metadata__":{"format":"' + FORMAT.encode() + b'","format_version":"'):
        raise CorruptData(f"{where} is not a shard of eaglefeed, or its header is damaged")
    found = _CHECKSUM.search(whole)
    intact = found is not None and zlib.crc32(whole[: found.start()] + _NO_CHECKSUM + whole[found.end() :]) == int(
        found[1], 16
    )
    version = re.match(rb'[^,]*,"format_version":"([0-9]+)"', text)
    if version is not None and int(version[1]) > FORMAT_VERSION:
        raise CorruptData(
            f"{where} is a shard of version {int(version[1])}; this eaglefeed reads up to {FORMAT_VERSION}: "
            "install a newer one"
        )
    if not intact:
        raise CorruptData(f"{where}: its header is damaged")
    try:
        return _parse(json.loads(text)["__metadata__"], where)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptData(f"{where}: its header lacks or misstates a field: {error}") from error


def header_length(prefix: bytes, num_bytes: int, where: str) -> int:
    """The length of the header, prefix included, from a shard's first 8 bytes and its size."""
    length: int = struct.unpack("<Q", prefix)[0] if len(prefix) == PREFIX_BYTES else 0
    if not 0 < length <= min(MAX_HEADER_BYTES, num_bytes - PREFIX_BYTES):
        raise CorruptData(f"{where} is not a shard, or is cut: {num_bytes} bytes, a header of {length}")
    return PREFIX_BYTES + length


def _render(header: ShardHeader, widest: bool) -> bytes:
    """The header's JSON; ``widest`` with the largest numbers, to know how long it can become."""
    samples = [_record(sample, widest) for sample in header.samples]
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "header_crc32": "00000000",
        "created_by": f"eaglefeed {__version__}",
        "batch_id": header.batch_id,
        "encoding": header.encoding,
        "lossy": "yes" if header.encoding == "fp8_per_token" else "no",
        "identity": _dumps(json.loads(header.identity.to_json())),
        "samples": _dumps(samples),
    }
    return _dumps({"__metadata__": metadata, **_tensors(header, widest)}).encode("ascii")


def _record(sample: ShardSample, widest: bool) -> dict[str, Any]:
    record = asdict(sample)
    record |= record.pop("stored")
    if widest:
        record |= {"start": _LARGEST, "end": _LARGEST}
    return record


def _tensors(header: ShardHeader, widest: bool) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    origin = header.samples[0].stored.start if header.samples else 0
    for sample in header.samples:
        T = sample.stored.num_tokens
        start, end = sample.stored.start - origin, sample.stored.end - origin
        edges = [start, start + 4 * T, start + 5 * T, end]
        for kind, first, last in zip(("tokens", "mask", "states"), edges[:-1], edges[1:], strict=True):
            offsets = [_LARGEST, _LARGEST] if widest else [first, last]
            shape = [_LARGEST] if widest else [last - first]
            tensors[f"{sample.stored.id}.{kind}"] = {"dtype": "U8", "shape": shape, "data_offsets": offsets}
    return tensors


def _parse(metadata: dict[str, str], where: str) -> ShardHeader:
    samples = []
    for record in json.loads(metadata["samples"]):
        own = {name: record.pop(name) for name in ShardSample.__slots__ if name != "stored"}
        own["shape"] = tuple(own["shape"])
        samples.append(ShardSample(StoredSample(**record), **own))
    if not is_id(metadata["batch_id"]) or not all(is_id(sample.stored.id) for sample in samples):
        raise CorruptData(f"{where} names something that is not an id")
    identity = RunIdentity.from_json(metadata["identity"])
    return ShardHeader(identity, metadata["batch_id"], metadata["encoding"], tuple(samples))


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
