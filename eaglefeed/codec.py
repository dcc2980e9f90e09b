"""States to bytes and back: lossless for any bit pattern, checksums inside, worked in chunks by threads.

Rotate each pattern left by one, subtract each channel's usual exponent, and leave zstd nothing but its Huffman stage
for that byte; the others are stored as they are (docs/format.md has the bytes; `eaglefeed bench codec` compares).
Legend: ``T`` tokens, ``S`` slots (K captured layers and the final state), ``H`` hidden width, ``R`` rows of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed import fp8, planes
from eaglefeed.chunks import PlanePool, decode_chunk, encode_chunk
from eaglefeed.planes import Bits
from eaglefeed.tensor_header import (
    CHUNK_ROWS,
    ELEMENT_BITS,
    ENCODINGS,
    MAX_CHUNK_BYTES,
    TensorHeader,
    TensorPlan,
    header_size,
    pack_header,
    packed_offsets,
    unpack_header,
)
from eaglefeed.threads import in_order


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


def encode(states: Bits, dtype: str, encoding: str = "lossless", threads: int = 1) -> memoryview:
    """Encode ``[T, S, H]`` bit patterns; the bytes describe themselves.

    ``fp8_per_token`` is lossy and needs finite states: others are kept lossless, and the header says so.
    """
    encoding = usable_encoding(states, dtype, encoding)
    plan, pool = plan_tensor(states, dtype, encoding), PlanePool()
    offsets = packed_offsets(plan)
    position = header_bytes = header_size(plan, offsets)
    blob = np.empty(header_bytes + plan.largest_data_bytes, np.uint8)
    entries = []
    for chunk in in_order(lambda rows: encode_chunk(rows, plan, pool), chunk_rows(states, plan), threads):
        for part in chunk.parts:
            blob[position : position + len(part)] = part
            position += len(part)
        entries.append(chunk.entry)
        chunk.release(pool)
    blob[:header_bytes] = np.frombuffer(pack_header(plan, offsets, entries), np.uint8)
    return blob[:position].data


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
        lambda place: decode_chunk(blob, header, place, rows, is_checked), _chunk_places(header), threads
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
