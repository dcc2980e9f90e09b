"""docs/format.md is enough: a reader written from it alone, without eaglefeed's codec, reads the vectors."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import zstandard

from eaglefeed import codec
from eaglefeed.shard import ShardReader

VECTORS = Path(__file__).parent.parent / "vectors"
TENSORS: dict[str, dict[str, Any]] = json.loads((VECTORS / "tensors.json").read_text())


def read_tensor(blob: bytes) -> bytes:
    """The states' bytes, decoded as the page says, one element at a time."""
    magic, encoding, element, zero, T, S, H, R, num_offset_bytes = struct.unpack_from("<4sBBHIIIII", blob)
    assert (magic, zero) == (b"EFC\x01", 0)
    E, C = {1: 2, 2: 2, 3: 4}[element], S * H
    P = {0: 1, 1: E, 2: 2}[encoding]
    place = 28 + num_offset_bytes
    offsets = zstandard.decompress(blob[28:place]) if num_offset_bytes else bytes(C)
    chunks = [struct.unpack_from(f"<{P + 1}I", blob, place + 4 * (P + 1) * n) for n in range(-(-T // R))]
    place += 4 * (P + 1) * len(chunks)
    assert struct.unpack_from("<I", blob, place)[0] == zlib.crc32(blob[:place])
    place += 4
    rows = bytearray()
    for *lengths, crc in chunks:
        planes, first = [], place
        for length in lengths:
            part = blob[place : place + (length & 0x7FFFFFFF)]
            planes.append(part if length >> 31 else zstandard.decompress(part))
            place += length & 0x7FFFFFFF
        assert zlib.crc32(blob[first:place]) == crc
        rows += {0: _raw, 1: _lossless, 2: _fp8}[encoding](planes, E, C, S, offsets)
    assert place == len(blob)
    return bytes(rows)


def _raw(planes: list[bytes], E: int, C: int, S: int, offsets: bytes) -> bytes:
    return planes[0]


def _lossless(planes: list[bytes], E: int, C: int, S: int, offsets: bytes) -> bytes:
    out = bytearray()
    for place in range(len(planes[0])):
        value = sum(plane[place] << 8 * number for number, plane in enumerate(planes[:-1]))
        value |= ((planes[-1][place] + offsets[place % C]) & 255) << 8 * (E - 1)
        out += (value >> 1 | (value & 1) << (8 * E - 1)).to_bytes(E, "little")
    return bytes(out)


def _fp8(planes: list[bytes], E: int, C: int, S: int, offsets: bytes) -> bytes:
    out = bytearray()
    for place, code in enumerate(planes[1]):
        scale = np.frombuffer(planes[0], "<f4")[place // (C // S)]
        exponent, mantissa = code >> 3 & 15, code & 7
        value = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
        bits = int((np.float32(-value if code >> 7 else value) * scale).view(np.uint32))
        out += ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")
    return bytes(out)


@pytest.mark.parametrize("name", TENSORS)
def test_the_page_s_reader_reads_the_vectors(name: str) -> None:
    """A reader written from the page gives the bytes that the vector says."""
    assert read_tensor((VECTORS / f"{name}.efc").read_bytes()) == (VECTORS / f"{name}.raw").read_bytes()


@pytest.mark.parametrize("name", TENSORS)
def test_eaglefeed_still_reads_the_vectors(name: str) -> None:
    """What version 1 wrote once is read by every later eaglefeed."""
    decoded = codec.decode((VECTORS / f"{name}.efc").read_bytes())
    assert decoded.tobytes() == (VECTORS / f"{name}.raw").read_bytes()
    assert list(decoded.shape) == TENSORS[name]["shape"]


def test_the_shard_vector_reads_with_safetensors_and_the_page_alone() -> None:
    """The plain safetensors library opens the shard, and the page's reader its states."""
    tensors = safetensors.numpy.load_file(VECTORS / "shard.safetensors")
    ids = {name.partition(".")[0] for name in tensors}
    assert len(ids) == 2
    for sample in ids:
        T = len(tensors[f"{sample}.mask"])
        assert tensors[f"{sample}.tokens"].view("<u4").tolist() == list(range(5, 5 + T))
        assert tensors[f"{sample}.mask"].tolist() == [int(place % 3 > 0) for place in range(T)]
        assert read_tensor(tensors[f"{sample}.states"].tobytes()) == (VECTORS / f"shard-{sample}.raw").read_bytes()


def test_eaglefeed_still_reads_the_shard_vector() -> None:
    """The shard that version 1 wrote once is read by every later eaglefeed, checksums included."""
    reader = ShardReader.open(VECTORS / "shard.safetensors")
    for sample in reader.samples:
        states = reader.read(sample, check_raw=True)
        assert states.states.tobytes() == (VECTORS / f"shard-{sample.id}.raw").read_bytes()
