"""The codec against zstd, gzip, byte planes and ZipNN, on real states of SmolLM2 made on the spot, one core."""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from bench.states import MODEL, gaussian_states, smollm2_states
from eaglefeed import codec
from eaglefeed.errors import CorruptData

GAUSSIAN_LIMIT = 16 / 10.46
"""A Gaussian in bfloat16 carries 10.46 bits."""

GZIP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One codec's figures. Speeds are of raw bytes, MB = 10^6."""

    ratio: float
    encode_mb_s: float
    decode_mb_s: float


@dataclass(frozen=True, slots=True)
class Contender:
    """A codec as two functions over bytes, and how much of the data it is given (gzip takes minutes for all)."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    max_bytes: int = 1 << 62


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=MODEL, metavar="DIR", help="SmolLM2 (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=16_384, help="tokens of real text (default %(default)s)")
    parser.add_argument("--width", type=int, default=0, metavar="H", help="synthetic states of this width instead")
    parser.add_argument("--rounds", type=int, default=15, help="each codec's best of so many, taken in turn")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    if parsed.width:
        states = gaussian_states(parsed.tokens, parsed.width)
    else:
        states = np.concatenate(smollm2_states(parsed.model, parsed.tokens, parsed.quiet))
    _stay_on_one_core()
    rows = measure(states, contenders(states), parsed.rounds)
    memcpy = _memcpy_mb_s(states)
    own = rows.pop("eaglefeed")
    if parsed.json:
        record: dict[str, Any] = {**_record(own), "memcpy_mb_s": round(memcpy)}
        record |= {name: _record(row) for name, row in rows.items()}
        print(json.dumps({**record, "raw_bytes": states.nbytes, "shape": list(states.shape)}))
    else:
        print(_page(states, own, rows, memcpy))
    return 0


def contenders(states: npt.NDArray[np.uint16]) -> list[Contender]:
    """Everything that is measured; ZipNN where it is installed."""
    shape, raw = states.shape, states.nbytes
    found = [
        Contender("eaglefeed", lambda data: codec.encode(data.reshape(shape), "bfloat16"), codec.decode),
        _zstd("zstd_1", 1, raw),
        _zstd("zstd_3", 3, raw),
        Contender("gzip_6", lambda data: gzip.compress(data.tobytes(), 6), gzip.decompress, GZIP_BYTES),
        _planes(raw),
    ]
    return found + ([_zipnn()] if importlib.util.find_spec("zipnn") else [])


def measure(states: npt.NDArray[np.uint16], codecs: list[Contender], rounds: int) -> dict[str, Row]:
    """The best of ``rounds`` of each; they take turns, so that a busy moment of the machine hits all alike.

    Raises CorruptData when one does not give back what it was given.
    """
    ratios: dict[str, float] = {}
    seconds: dict[tuple[str, str], float] = {
        (each.name, way): math.inf for each in codecs for way in ("encode", "decode")
    }
    sizes: dict[str, int] = {}
    for number in range(rounds):
        for each in codecs:
            data = states.reshape(-1)[: each.max_bytes // 2]
            if data.nbytes < states.nbytes and number > 0:
                continue
            packed, taken = _timed(each.encode, data)
            seconds[each.name, "encode"] = min(seconds[each.name, "encode"], taken)
            unpacked, taken = _timed(each.decode, packed)
            seconds[each.name, "decode"] = min(seconds[each.name, "decode"], taken)
            if np.frombuffer(unpacked, np.uint16).tobytes() != data.tobytes():
                raise CorruptData(f"{each.name} does not give back what it was given")
            ratios[each.name], sizes[each.name] = data.nbytes / len(packed), data.nbytes
    return {
        name: Row(ratio, sizes[name] / seconds[name, "encode"] / 1e6, sizes[name] / seconds[name, "decode"] / 1e6)
        for name, ratio in ratios.items()
    }


def _zstd(name: str, level: int, raw_bytes: int) -> Contender:
    compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return Contender(
        name,
        lambda data: compressor.compress(data.data),
        lambda packed: decompressor.decompress(packed, max_output_size=raw_bytes),
    )


def _planes(raw_bytes: int) -> Contender:
    """Both bytes of each value apart, the high ones by zstd level 1, the low ones as they are."""
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def encode(data: npt.NDArray[np.uint16]) -> bytes:
        pairs = data.view(np.uint8).reshape(-1, 2)
        return bytes(compressor.compress(np.ascontiguousarray(pairs[:, 1]).data)) + pairs[:, 0].tobytes()

    def decode(packed: bytes) -> npt.NDArray[np.uint16]:
        split = len(packed) - raw_bytes // 2
        pairs = np.empty((raw_bytes // 2, 2), np.uint8)
        pairs[:, 0] = np.frombuffer(packed, np.uint8, offset=split)
        pairs[:, 1] = np.frombuffer(decompressor.decompress(packed[:split]), np.uint8)
        return pairs.reshape(-1).view(np.uint16)

    return Contender("planes_zstd_1", encode, decode)


def _zipnn() -> Contender:
    from zipnn import ZipNN  # type: ignore[import-not-found,unused-ignore]  # not everybody has it

    coder = ZipNN(bytearray_dtype="bfloat16", input_format="byte", threads=1)
    return Contender("zipnn", lambda data: coder.compress(data.tobytes()), coder.decompress)


def _timed(function: Callable[[Any], Any], argument: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    result = function(argument)
    return result, time.perf_counter() - started


def _memcpy_mb_s(states: npt.NDArray[np.uint16]) -> float:
    target = np.empty_like(states)
    best = min(_timed(lambda _: np.copyto(target, states), None)[1] for _ in range(7))
    return states.nbytes / best / 1e6


def _stay_on_one_core() -> None:
    """One core for all, the last one: interrupts mostly go to the first."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _record(row: Row) -> dict[str, float]:
    return {
        "ratio": round(row.ratio, 4),
        "encode_mb_s": round(row.encode_mb_s, 1),
        "decode_mb_s": round(row.decode_mb_s, 1),
    }


def _page(states: npt.NDArray[np.uint16], own: Row, rows: dict[str, Row], memcpy: float) -> str:
    lines = [f"{states.nbytes / 1e6:.0f} MB of states {list(states.shape)}, one core, memcpy {memcpy:,.0f} MB/s", ""]
    lines.append(f"{'':<16}{'ratio':>8}{'encode MB/s':>14}{'decode MB/s':>14}")
    for name, row in {"eaglefeed": own, **rows}.items():
        lines.append(f"{name:<16}{row.ratio:>8.4f}{row.encode_mb_s:>14,.0f}{row.decode_mb_s:>14,.0f}")
    away = 100 * (1 - own.ratio / GAUSSIAN_LIMIT)
    lines += ["", f"a Gaussian in bfloat16 cannot be stored smaller than {GAUSSIAN_LIMIT:.4f} times: {away:.1f} % away"]
    return "\n".join(lines)
