"""The lossy encoding: FP8 (E4M3) with one scale per token and slot, as plain integer arithmetic on float32.

Legend: ``R`` rows (tokens), ``S`` slots, ``H`` hidden width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_E4M3 = 448.0
"""The largest finite value of E4M3 (no infinities; 0x7f is NaN)."""

FloatArray = npt.NDArray[np.float32]


def to_float32(bits: npt.NDArray[Any], dtype: str) -> FloatArray:
    """Bit patterns of ``dtype`` as float32 values."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "float16" else bits.view(np.float32)


def from_float32(values: FloatArray, dtype: str) -> npt.NDArray[Any]:
    """Float32 values rounded to nearest even as bit patterns of ``dtype``."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    wide = np.ascontiguousarray(values).view(np.uint32)
    if dtype == "float32":
        return wide
    return ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)


def quantize(values: FloatArray) -> tuple[FloatArray, npt.NDArray[np.uint8]]:
    """Scales ``[R, S]`` (largest magnitude / 448, 1 for a row of zeros) and E4M3 codes ``[R, S, H]``.

    Raises ValueError for a value that is not finite: no scale fits it.
    """
    largest = np.abs(values).max(axis=2)
    if not np.isfinite(largest).all():
        raise ValueError("FP8 with a scale per token needs finite states")
    scales = np.where(largest > 0, largest / np.float32(MAX_E4M3), np.float32(1)).astype(np.float32)
    scales = np.maximum(scales, np.finfo(np.float32).tiny)
    return scales, encode_e4m3(values / scales[:, :, None])


def dequantize(scales: FloatArray, codes: npt.NDArray[np.uint8]) -> FloatArray:
    """The values that ``quantize`` stands for, ``[R, S, H]`` float32."""
    return np.asarray(E4M3_VALUES[codes] * scales[:, :, None], np.float32)


def encode_e4m3(values: FloatArray) -> npt.NDArray[np.uint8]:
    """Nearest E4M3 code, ties to even; magnitudes above 448 become 448."""
    magnitude = np.minimum(np.abs(values), np.float32(MAX_E4M3))
    bits = magnitude.view(np.uint32)
    # 20 mantissa bits are rounded away; exponents are rebased from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20).astype(np.int32) - ((127 - 7) << 3)
    subnormal = np.rint(magnitude * np.float32(512)).astype(np.int32)
    code = np.where(magnitude < np.float32(2.0**-6), subnormal, normal)
    sign = np.signbit(values).astype(np.uint8) << np.uint8(7)
    return np.asarray(np.minimum(code, 0x7E).astype(np.uint8) | sign, np.uint8)


def _e4m3_values() -> FloatArray:
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[0x7F] = np.nan
    return np.asarray(np.concatenate([values, -values]), np.float32)


E4M3_VALUES = _e4m3_values()
