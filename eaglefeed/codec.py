"""States to bytes and back: lossless for any bit pattern, checksums inside, worked in chunks by threads.

Rotate each pattern left by one, subtract each channel's usual exponent, and leave zstd nothing but its Huffman stage
for that byte; the others are stored as they are (docs/format.md has the bytes, docs/benchmarks.md the comparison).
Legend: ``T`` tokens, ``S`` slots (K captured layers and the final state), ``H`` hidden width, ``R`` rows of a chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from eaglefeed import fp8, planes
from eaglefeed.errors import CorruptData
from eaglefeed.planes import Bits, Bytes
from eaglefeed.tensor_header import (
    CHUNK_ROWS,
    ELEMENT_BITS,
    ENCODINGS,
    MAX_CHUNK_BYTES,
    STORED_RAW,
    ChunkEntry,
    TensorHeader,
    TensorPlan,
    pack_header,
    packed_offsets,
    unpack_header,
    unpack_plane,
)
from eaglefeed.threads import in_order

_PROBE_BYTES = 1 << 14
_WORTH = 0.98
"""A plane is compressed when a probe of it shrinks below this."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedChunk:
    """A chunk's stored bytes in order, and the checksums of both sides."""

    parts: tuple[memoryview, ...]
    entry: ChunkEntry
    raw_crc32: int
    raw_bytes: int


def plan_tensor(states: Bits, dtype: str, encoding: str = "lossless") -> TensorPlan:
    """How ``states`` ``[T, S, H]`` of uint16 (uint32 for float32) bit patterns will be encoded.

    Raises ValueError for another shape, type or encoding, which is the caller's mistake.
    """
    if dtype not in ELEMENT_BITS or encoding not in ENCODINGS:
        raise ValueError(f"no such dtype or encoding: {dtype!r}, {encoding!r}")
    if states.ndim != 3 or 0 in states.shape or states.dtype != ELEMENT_BITS[dtype]:
        raise ValueError(f"states are {states.dtype}{list(states.shape)}, not {ELEMENT_BITS[dtype]} [T, S, H]")
    T, S, H = states.shape
    chunk_rows = max(1, min(CHUNK_ROWS, MAX_CHUNK_BYTES // (S * H * states.itemsize)))
    offsets = planes.channel_offsets(states.reshape(T, S * H)) if encoding == "lossless" else None
    return TensorPlan(dtype, encoding, (T, S, H), chunk_rows, offsets)


def encode(states: Bits, dtype: str, encoding: str = "lossless", threads: int = 1) -> bytes:
    """Encode ``[T, S, H]`` bit patterns; the result describes itself.

    ``fp8_per_token`` is lossy and needs finite states: others are kept lossless, and the header says so.
    """
    encoding = usable_encoding(states, dtype, encoding)
    plan = plan_tensor(states, dtype, encoding)
    chunks = list(in_order(lambda rows: encode_chunk(rows, plan), chunk_rows(states, plan), threads))
    header = pack_header(plan, packed_offsets(plan), [chunk.entry for chunk in chunks])
    return b"".join([header, *(part for chunk in chunks for part in chunk.parts)])


def decode(blob: bytes | memoryview, out: Bits | None = None, threads: int = 1, is_checked: bool = False) -> Bits:
    """Decode into ``out`` (C-contiguous ``[T, S, H]`` of the right bits) or a new array.

    ``is_checked``: the caller has compared a checksum of all of ``blob`` already, so the chunks' own are not computed.

    Raises:
        CorruptData: one bit of ``blob`` is not what was written; ``out`` may hold part of the tensor then.
        ValueError: ``out`` has another shape or type.
    """
    blob = memoryview(blob)
    header = unpack_header(blob)
    states = _target(header.plan, out)
    rows = states.reshape(header.plan.shape[0], -1)
    for _ in in_order(
        lambda place: _decode_chunk(blob, header, place, rows, is_checked), _chunk_places(header), threads
    ):
        pass
    return states


def decode_torch(blob: bytes | memoryview, out: Any = None, threads: int = 1) -> Any:
    """Decode into a CPU tensor ``[T, S, H]`` (pinned or not) or a new one, of the dtype that the header names."""
    import torch

    plan = unpack_header(memoryview(blob)).plan
    dtype = getattr(torch, plan.dtype)
    tensor = torch.empty(plan.shape, dtype=dtype) if out is None else out
    if tensor.dtype != dtype or tuple(tensor.shape) != plan.shape or not tensor.is_contiguous():
        raise ValueError(f"a tensor {tensor.dtype}{list(tensor.shape)} for states {dtype}{list(plan.shape)}")
    as_integers = torch.uint32 if plan.dtype == "float32" else torch.uint16
    decode(blob, tensor.view(as_integers).numpy(), threads)
    return tensor


def usable_encoding(states: Bits, dtype: str, encoding: str) -> str:
    """``encoding``, or ``lossless`` where a scale per token cannot hold the states."""
    if encoding != "fp8_per_token":
        return encoding
    finite = all(np.isfinite(fp8.to_float32(states[i : i + 64], dtype)).all() for i in range(0, len(states), 64))
    return encoding if finite else "lossless"


def chunk_rows(states: Bits, plan: TensorPlan) -> Iterator[Bits]:
    """The chunks of a tensor, each ``[R, S*H]``."""
    rows = states.reshape(plan.shape[0], plan.num_channels)
    for start in range(0, plan.shape[0], plan.chunk_rows):
        yield rows[start : start + plan.chunk_rows]


def encode_chunk(rows: Bits, plan: TensorPlan) -> EncodedChunk:
    """Encode one chunk; the raw bytes' checksum is taken on the way."""
    raw_crc32 = zlib.crc32(rows.data if rows.flags.c_contiguous else np.ascontiguousarray(rows).data)
    stored = [_pack_plane(plane, plan) for plane in _planes(rows, plan)]
    crc32 = 0
    for part, _ in stored:
        crc32 = zlib.crc32(part, crc32)
    entry = ChunkEntry(tuple(length for _, length in stored), crc32)
    return EncodedChunk(tuple(part for part, _ in stored), entry, raw_crc32, rows.nbytes)


def _planes(rows: Bits, plan: TensorPlan) -> list[Bytes]:
    if plan.encoding == "raw":
        return [np.array(rows).view(np.uint8).reshape(-1)]
    if plan.encoding == "fp8_per_token":
        values = fp8.to_float32(np.ascontiguousarray(rows), plan.dtype).reshape(-1, *plan.shape[1:])
        scales, codes = fp8.quantize(values)
        return [scales.view(np.uint8).reshape(-1), codes.reshape(-1)]
    split = [np.empty(rows.shape, np.uint8) for _ in range(rows.itemsize)]
    planes.split(rows, plan.offsets, split)
    return [plane.reshape(-1) for plane in split]


def _pack_plane(plane: Bytes, plan: TensorPlan) -> tuple[memoryview, int]:
    """The plane's stored bytes and its entry in the chunk table: compressed where that shrinks it."""
    if plan.encoding != "raw":
        compressor = _huffman()
        probe = plane[len(plane) // 2 :][:_PROBE_BYTES]
        if len(compressor.compress(probe.data)) < _WORTH * len(probe):
            packed = compressor.compress(plane.data)
            if len(packed) < len(plane):
                return memoryview(packed), len(packed)
    return plane.data, len(plane) | STORED_RAW


def _huffman() -> zstandard.ZstdCompressor:
    """zstd with next to no match search: what is left is its Huffman stage."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=17, chain_log=6, hash_log=6, search_log=1, min_match=7, strategy=zstandard.STRATEGY_FAST
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def _target(plan: TensorPlan, out: Bits | None) -> npt.NDArray[Any]:
    if out is None:
        return np.empty(plan.shape, plan.bits)
    if out.shape != plan.shape or out.dtype != plan.bits or not out.flags.c_contiguous:
        raise ValueError(f"an array {out.dtype}{list(out.shape)} for states {plan.bits}{list(plan.shape)}")
    return out


def _chunk_places(header: TensorHeader) -> Iterator[tuple[int, int]]:
    """Each chunk's number and where its bytes begin."""
    start = header.num_bytes
    for number, entry in enumerate(header.chunks):
        yield number, start
        start += entry.num_bytes


def _decode_chunk(blob: memoryview, header: TensorHeader, place: tuple[int, int], rows: Bits, is_checked: bool) -> None:
    number, start = place
    plan, entry = header.plan, header.chunks[number]
    stored = blob[start : start + entry.num_bytes]
    first = number * plan.chunk_rows
    if not is_checked and zlib.crc32(stored) != entry.crc32:
        raise CorruptData(f"rows {first} to {first + plan.rows_of(number) - 1} are not the bytes that were written")
    out = rows[first : first + plan.rows_of(number)]
    _join_planes(_unpack_planes(stored, entry, plan.plane_bytes(number)), plan, out)


def _unpack_planes(stored: memoryview, entry: ChunkEntry, sizes: list[int]) -> list[Bytes]:
    unpacked, start = [], 0
    for coded, num_bytes in zip(entry.lengths, sizes, strict=True):
        length = coded & ~STORED_RAW
        part = stored[start : start + length]
        if coded & STORED_RAW and length != num_bytes:
            raise CorruptData(f"a plane of {length} bytes in place of {num_bytes}")
        unpacked.append(np.frombuffer(part, np.uint8) if coded & STORED_RAW else unpack_plane(part, num_bytes))
        start += length
    return unpacked


def _join_planes(unpacked: list[Bytes], plan: TensorPlan, out: Bits) -> None:
    if plan.encoding == "raw":
        out[...] = unpacked[0].view(plan.bits).reshape(out.shape)
    elif plan.encoding == "fp8_per_token":
        scales = unpacked[0].view("<f4").reshape(len(out), plan.shape[1])
        codes = unpacked[1].reshape(len(out), *plan.shape[1:])
        out[...] = fp8.from_float32(fp8.dequantize(scales, codes), plan.dtype).reshape(out.shape)
    else:
        planes.join([plane.reshape(out.shape) for plane in unpacked], plan.offsets, out)
