"""The header of one encoded tensor: what it is, its channels' offsets and where each chunk lies (docs/format.md).

Legend: ``T`` rows (tokens), ``S`` slots, ``H`` hidden width, ``C`` = S * H channels.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from eaglefeed.errors import CorruptData
from eaglefeed.planes import Bytes

MAGIC = b"EFC\x01"
RAW, LOSSLESS, FP8 = 0, 1, 2
ENCODINGS = {"raw": RAW, "lossless": LOSSLESS, "fp8_per_token": FP8}
DTYPES = {"bfloat16": 1, "float16": 2, "float32": 3}
ELEMENT_BITS: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<u2"),
    "float32": np.dtype("<u4"),
}
CHUNK_ROWS = 256
MAX_CHUNK_BYTES = 1 << 28
STORED_RAW = 1 << 31
"""Set in a plane's length where the plane is not compressed."""

_FIXED = struct.Struct("<4sBBHIIIII")


@dataclass(frozen=True, slots=True, eq=False)
class TensorPlan:
    """A tensor's shape and encoding: all of its header but the chunks' sizes."""

    dtype: str
    encoding: str
    shape: tuple[int, int, int]
    chunk_rows: int
    offsets: Bytes | None = None

    @property
    def num_channels(self) -> int:
        return self.shape[1] * self.shape[2]

    @property
    def bits(self) -> np.dtype[Any]:
        return ELEMENT_BITS[self.dtype]

    @property
    def raw_bytes(self) -> int:
        return self.shape[0] * self.num_channels * self.bits.itemsize

    @property
    def num_planes(self) -> int:
        return {"raw": 1, "lossless": self.bits.itemsize, "fp8_per_token": 2}[self.encoding]

    @property
    def num_chunks(self) -> int:
        return -(-self.shape[0] // self.chunk_rows)

    @property
    def largest_data_bytes(self) -> int:
        """What all chunks may take: a plane that does not shrink is stored as it is."""
        return sum(sum(self.plane_bytes(chunk)) for chunk in range(self.num_chunks))

    def rows_of(self, chunk: int) -> int:
        return min(self.chunk_rows, self.shape[0] - chunk * self.chunk_rows)

    def plane_bytes(self, chunk: int) -> list[int]:
        """The size of each plane of a chunk before compression."""
        elements = self.rows_of(chunk) * self.num_channels
        if self.encoding == "fp8_per_token":
            return [4 * self.rows_of(chunk) * self.shape[1], elements]
        return [elements * self.bits.itemsize] if self.encoding == "raw" else [elements] * self.num_planes


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """Where a chunk's planes lie and the CRC-32 of its stored bytes. ``lengths`` carry the STORED_RAW bit."""

    lengths: tuple[int, ...]
    crc32: int

    @property
    def num_bytes(self) -> int:
        return sum(length & ~STORED_RAW for length in self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class TensorHeader:
    """A header read back: the plan, the chunks, and its own length."""

    plan: TensorPlan
    chunks: tuple[ChunkEntry, ...]
    num_bytes: int


def packed_offsets(plan: TensorPlan) -> bytes:
    """The channels' offsets as one zstd frame, empty where there are none."""
    return b"" if plan.offsets is None else zstandard.ZstdCompressor(level=3).compress(plan.offsets.tobytes())


def header_size(plan: TensorPlan, offsets: bytes) -> int:
    return _FIXED.size + len(offsets) + 4 * (plan.num_planes + 1) * plan.num_chunks + 4


def pack_header(plan: TensorPlan, offsets: bytes, chunks: list[ChunkEntry]) -> bytes:
    """The bytes before the first chunk."""
    kind = ENCODINGS[plan.encoding]
    fixed = _FIXED.pack(MAGIC, kind, DTYPES[plan.dtype], 0, *plan.shape, plan.chunk_rows, len(offsets))
    table = b"".join(struct.pack(f"<{len(chunk.lengths) + 1}I", *chunk.lengths, chunk.crc32) for chunk in chunks)
    text = fixed + offsets + table
    return text + struct.pack("<I", zlib.crc32(text))


def unpack_header(blob: memoryview) -> TensorHeader:
    """Raises CorruptData for what is not a whole encoded tensor of this version."""
    if len(blob) < _FIXED.size + 4:
        raise CorruptData(f"{len(blob)} bytes are too few for an encoded tensor")
    magic, kind, dtype_code, reserved, T, S, H, chunk_rows, num_offset_bytes = _FIXED.unpack_from(blob)
    if magic[:3] != MAGIC[:3]:
        raise CorruptData("not an encoded tensor")
    if magic != MAGIC:
        raise CorruptData(f"an encoded tensor of version {magic[3]}; this eaglefeed reads {MAGIC[3]}")
    encoding, dtype = _name(ENCODINGS, kind, "encoding"), _name(DTYPES, dtype_code, "dtype")
    if reserved or not all((T, S, H, chunk_rows)):
        raise CorruptData(f"a header that is damaged (shape {T}, {S}, {H} in chunks of {chunk_rows})")
    plan = TensorPlan(dtype, encoding, (T, S, H), chunk_rows)
    table_start = _FIXED.size + num_offset_bytes
    end = table_start + 4 * (plan.num_planes + 1) * plan.num_chunks
    if end + 4 > len(blob) or zlib.crc32(blob[:end]) != struct.unpack_from("<I", blob, end)[0]:
        raise CorruptData("its header is damaged or cut")
    table = np.frombuffer(blob[table_start:end], "<u4").reshape(plan.num_chunks, plan.num_planes + 1).tolist()
    chunks = tuple(ChunkEntry(tuple(row[:-1]), row[-1]) for row in table)
    if end + 4 + sum(chunk.num_bytes for chunk in chunks) != len(blob):
        raise CorruptData(f"{len(blob)} bytes, and its header promises another length")
    offsets = _unpack_offsets(blob[_FIXED.size : table_start], plan.num_channels)
    return TensorHeader(TensorPlan(dtype, encoding, (T, S, H), chunk_rows, offsets), chunks, end + 4)


def _unpack_offsets(frame: memoryview, num_channels: int) -> Bytes | None:
    if not len(frame):
        return None
    try:
        if zstandard.frame_content_size(frame) != num_channels:
            raise CorruptData(f"offsets that are not of {num_channels} channels")
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(frame, max_output_size=num_channels), np.uint8)
    except zstandard.ZstdError as error:
        raise CorruptData(f"offsets that cannot be unpacked: {error}") from error


def _name(codes: dict[str, int], code: int, what: str) -> str:
    for name, known in codes.items():
        if known == code:
            return name
    raise CorruptData(f"{what} {code}, which this eaglefeed does not know")
