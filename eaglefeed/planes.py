"""Rows of 16- or 32-bit patterns split into byte planes and joined again, in blocks that stay in a core's cache.

A pattern is rotated left by one, so that the sign falls into bit 0 and the exponent fills the last plane; from that
plane each channel's usual value is subtracted. Legend: ``R`` rows, ``C`` channels, ``E`` bytes of an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
"""uint16 or uint32 bit patterns."""

Bytes = npt.NDArray[np.uint8]

BLOCK_ELEMENTS = 1 << 17
MEDIAN_ROWS = 128
MIN_ROWS_WITH_OFFSETS = 16
"""Below this, C offsets cost more than they save."""


def channel_offsets(rows: Bits) -> Bytes | None:
    """The median of each channel's last plane over at most 128 rows ``[C]``, None for too few rows to pay."""
    if len(rows) < MIN_ROWS_WITH_OFFSETS:
        return None
    num_sampled = min(MEDIAN_ROWS, max(MIN_ROWS_WITH_OFFSETS, len(rows) // 8))
    sampled = rows[:: max(1, len(rows) // num_sampled)][:num_sampled]
    bits = 8 * rows.itemsize
    # The last plane after the rotation: the pattern's bits below the sign.
    exponents = (sampled >> rows.dtype.type(bits - 9)).astype(np.uint8)
    by_channel = np.ascontiguousarray(exponents.T)
    by_channel.partition(num_sampled // 2, axis=1)
    return np.ascontiguousarray(by_channel[:, num_sampled // 2])


def split(rows: Bits, offsets: Bytes | None, planes: list[Bytes]) -> None:
    """``rows`` ``[R, C]`` into E ``planes`` of uint8 ``[R, C]``, the least significant first."""
    num_rows, num_channels = rows.shape
    step = max(1, BLOCK_ELEMENTS // num_channels)
    rotated, carried = np.empty((2, step, num_channels), rows.dtype)
    sign_shift = 8 * rows.itemsize - 1
    for start in range(0, num_rows, step):
        end = min(start + step, num_rows)
        block, sign = rotated[: end - start], carried[: end - start]
        np.left_shift(rows[start:end], 1, out=block)
        np.right_shift(rows[start:end], sign_shift, out=sign)
        np.bitwise_or(block, sign, out=block)
        for plane in planes[:-1]:
            np.copyto(plane[start:end], block, casting="unsafe")
            np.right_shift(block, 8, out=block)
        last = planes[-1][start:end]
        np.copyto(last, block, casting="unsafe")
        if offsets is not None:
            np.subtract(last, offsets, out=last)


def join(planes: list[Bytes], offsets: Bytes | None, out: Bits) -> None:
    """The inverse of ``split``, into ``out`` ``[R, C]``."""
    num_rows, num_channels = out.shape
    step = max(1, BLOCK_ELEMENTS // num_channels)
    rotated = np.empty((step, num_channels), out.dtype)
    restored = np.empty((step, num_channels), np.uint8)
    sign_shift = 8 * out.itemsize - 1
    for start in range(0, num_rows, step):
        end = min(start + step, num_rows)
        block, scratch = rotated[: end - start], out[start:end]
        last = planes[-1][start:end]
        if offsets is not None:
            last = np.add(last, offsets, out=restored[: end - start])
        np.copyto(block, last)
        for plane in planes[-2::-1]:
            np.left_shift(block, 8, out=block)
            np.copyto(scratch, plane[start:end])
            np.bitwise_or(block, scratch, out=block)
        np.right_shift(block, 1, out=scratch)
        np.left_shift(block, sign_shift, out=block)
        np.bitwise_or(scratch, block, out=scratch)
