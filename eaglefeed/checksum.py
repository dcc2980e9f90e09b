"""CRC-32 as eaglefeed writes it, ``crc32:`` and eight hex digits, and the arithmetic that joins two of them.

The same CRC-32 that S3 keeps (``x-amz-checksum-crc32``), so a checksum made while encoding is the one a store reports.
"""

from __future__ import annotations

import base64
import functools
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from eaglefeed.errors import CorruptData

PREFIX = "crc32:"
_POLYNOMIAL = 0xEDB88320
_READ_BYTES = 1 << 20


def crc32_text(value: int) -> str:
    """``crc32:`` and the value in hex."""
    return f"{PREFIX}{value & 0xFFFFFFFF:08x}"


def checksum(data: bytes | memoryview) -> str:
    """The checksum of bytes in memory."""
    return crc32_text(zlib.crc32(data))


def checksum_value(text: str) -> int:
    """The number in ``crc32:…``; raises CorruptData for anything else."""
    try:
        if text.startswith(PREFIX) and len(text) == len(PREFIX) + 8:
            return int(text[len(PREFIX) :], 16)
    except ValueError:
        pass
    raise CorruptData(f"{text!r} is not a checksum of the form crc32:xxxxxxxx")


def to_base64(text: str) -> str:
    """The form in S3's headers: base64 of the big-endian value."""
    return base64.b64encode(checksum_value(text).to_bytes(4, "big")).decode("ascii")


def from_base64(text: str) -> str:
    """``crc32:…`` of S3's form, "" where it is not one plain CRC-32 (a composite of parts has a dash)."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return ""
    return crc32_text(int.from_bytes(raw, "big")) if len(raw) == 4 else ""


def file_checksum(file: BinaryIO) -> str:
    """The checksum of all that is left to read."""
    return stream_checksum(iter(lambda: file.read(_READ_BYTES), b""))


def path_checksum(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return file_checksum(file)


def stream_checksum(parts: Iterable[bytes]) -> str:
    """The checksum of parts in order."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return crc32_text(value)


def combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two strings joined, from theirs and the second one's length.

    Appending n bytes multiplies the first's polynomial by x^(8n) modulo the CRC's own: one table for each bit of n.
    """
    position = 0
    while second_bytes:
        if second_bytes & 1:
            a, b, c, d = _append_tables(position)
            first = a[first & 255] ^ b[first >> 8 & 255] ^ c[first >> 16 & 255] ^ d[first >> 24]
        second_bytes >>= 1
        position += 1
    return first ^ second


@functools.cache
def _append_tables(position: int) -> tuple[list[int], ...]:
    """What 2**position appended bytes make of each byte of a CRC."""
    power = 1 << 23  # x^8: bit 31 is x^0
    for _ in range(position):
        power = _multiply(power, power)
    return tuple([_multiply(power, byte << shift) for byte in range(256)] for shift in (0, 8, 16, 24))


def _multiply(a: int, b: int) -> int:
    """a * b modulo the polynomial, both bit-reflected."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product
