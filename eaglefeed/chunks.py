"""One chunk of states to its stored planes and back.

Legend: ``T`` tokens, ``S`` slots, ``H`` hidden width, ``R`` rows of a chunk.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass

import numpy as np
import zstandard

from eaglefeed import fp8, planes
from eaglefeed.errors import CorruptData
from eaglefeed.planes import Bits, Bytes
from eaglefeed.tensor_header import STORED_RAW, ChunkEntry, TensorHeader, TensorPlan

_PROBE_BYTES = 1 << 14
_WORTH = 0.98
"""A plane is compressed when a probe of it shrinks below this."""


class PlanePool:
    """Buffers for planes, used again and again: fresh memory costs a page fault every 4 KB, a third of the time."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []  # append and pop are atomic

    def take(self, num_bytes: int) -> Bytes:
        """A buffer of ``num_bytes``, of a larger one where there is one."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        return buffer[:num_bytes] if len(buffer) >= num_bytes else np.empty(num_bytes, np.uint8)

    def give_back(self, buffer: Bytes) -> None:
        self._free.append(buffer if buffer.base is None else buffer.base)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedChunk:
    """A chunk's stored bytes in order, and the checksums of both sides; call ``release`` when they are written."""

    parts: tuple[memoryview, ...]
    entry: ChunkEntry
    raw_crc32: int
    raw_bytes: int
    buffers: tuple[Bytes, ...] = ()

    def release(self, pool: PlanePool) -> None:
        """Give the buffers behind ``parts`` back: the parts are not to be read any more."""
        for buffer in self.buffers:
            pool.give_back(buffer)


def encode_chunk(rows: Bits, plan: TensorPlan, pool: PlanePool, with_raw_checksum: bool = False) -> EncodedChunk:
    """Encode one chunk ``[R, S*H]``; ``with_raw_checksum`` takes the raw bytes' CRC-32 on the way (else 0)."""
    rows = np.ascontiguousarray(rows)
    raw_crc32 = zlib.crc32(rows.data) if with_raw_checksum else 0
    unpacked = _planes(rows, plan, pool)
    stored = [_pack_plane(plane, plan) for plane in unpacked]
    crc32 = 0
    for part, _ in stored:
        crc32 = zlib.crc32(part, crc32)
    entry = ChunkEntry(tuple(length for _, length in stored), crc32)
    buffers = tuple(unpacked) if plan.encoding == "lossless" else ()
    return EncodedChunk(tuple(part for part, _ in stored), entry, raw_crc32, rows.nbytes, buffers)


def _planes(rows: Bits, plan: TensorPlan, pool: PlanePool) -> list[Bytes]:
    if plan.encoding == "raw":
        return [rows.view(np.uint8).reshape(-1)]
    if plan.encoding == "fp8_per_token":
        values = fp8.to_float32(rows, plan.dtype).reshape(-1, *plan.shape[1:])
        scales, codes = fp8.quantize(values)
        return [scales.view(np.uint8).reshape(-1), codes.reshape(-1)]
    split = [pool.take(rows.size) for _ in range(rows.itemsize)]
    planes.split(rows, plan.offsets, [plane.reshape(rows.shape) for plane in split])
    return split


def _pack_plane(plane: Bytes, plan: TensorPlan) -> tuple[memoryview, int]:
    """The plane's stored bytes and its entry in the chunk table: compressed where that shrinks it."""
    if plan.encoding != "raw":
        compressor = _contexts.compressor
        probe = plane[len(plane) // 2 :][:_PROBE_BYTES]
        if len(compressor.compress(probe.data)) < _WORTH * len(probe):
            packed = compressor.compress(plane.data)
            if len(packed) < len(plane):
                return memoryview(packed), len(packed)
    return plane.data, len(plane) | STORED_RAW


class _Contexts(threading.local):
    """A thread's own zstd contexts and the buffer that planes are unpacked into, kept for the next chunk.

    The compressor searches next to no matches: what is left is zstd's Huffman stage.
    """

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(
            window_log=17, chain_log=6, hash_log=6, search_log=1, min_match=7, strategy=zstandard.STRATEGY_FAST
        )
        self.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self.decompressor = zstandard.ZstdDecompressor()
        self._buffers: dict[int, Bytes] = {}

    def buffer(self, plane: int, num_bytes: int) -> Bytes:
        """Memory for one plane; its content lasts until the thread unpacks another chunk."""
        held = self._buffers.get(plane)
        if held is None or len(held) < num_bytes:
            held = self._buffers[plane] = np.empty(num_bytes, np.uint8)
        return held[:num_bytes]


_contexts = _Contexts()


def decode_chunk(blob: memoryview, header: TensorHeader, place: tuple[int, int], rows: Bits, is_checked: bool) -> None:
    """Decode one chunk into its rows of ``rows`` ``[T, S*H]``.

    Args:
        place: the chunk's number, and where its bytes begin in ``blob``.
        is_checked: a checksum of all of ``blob`` was compared already; the chunk's own is left out.

    Raises:
        CorruptData: the bytes are not those that were written.
    """
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
    for plane, (coded, num_bytes) in enumerate(zip(entry.lengths, sizes, strict=True)):
        length = coded & ~STORED_RAW
        part = stored[start : start + length]
        start += length
        if not coded & STORED_RAW:
            unpacked.append(_unpack_plane(part, _contexts.buffer(plane, num_bytes)))
        elif length == num_bytes:
            unpacked.append(np.frombuffer(part, np.uint8))
        else:
            raise CorruptData(f"a plane of {length} bytes in place of {num_bytes}")
    return unpacked


def _unpack_plane(frame: memoryview, out: Bytes) -> Bytes:
    """A zstd frame straight into ``out``; refused when it holds more or less."""
    try:
        declared = zstandard.frame_content_size(frame)
        num_bytes = _contexts.decompressor.stream_reader(frame).readinto(out.data)
    except zstandard.ZstdError as error:
        raise CorruptData(f"a plane that cannot be unpacked: {error}") from error
    if not declared == num_bytes == len(out):
        raise CorruptData(f"a plane of {num_bytes} bytes in place of {len(out)}")
    return out


def _join_planes(unpacked: list[Bytes], plan: TensorPlan, out: Bits) -> None:
    if plan.encoding == "raw":
        out[...] = unpacked[0].view(plan.bits).reshape(out.shape)
    elif plan.encoding == "fp8_per_token":
        scales = unpacked[0].view("<f4").reshape(len(out), plan.shape[1])
        codes = unpacked[1].reshape(len(out), *plan.shape[1:])
        out[...] = fp8.from_float32(fp8.dequantize(scales, codes), plan.dtype).reshape(out.shape)
    else:
        planes.join([plane.reshape(out.shape) for plane in unpacked], plan.offsets, out)
