"""Lines of text files, plain or compressed, read with bounded memory."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from producer.rows import MAX_ROW_BYTES, Row

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BUFFER_BYTES = 1 << 20
BROKEN = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What a damaged or cut compressed file raises while it is read."""


@contextmanager
def open_text(path: Path | None) -> Iterator[io.BufferedReader]:
    """The bytes of a file (None: the standard input), unpacked when its first bytes say gzip or zstd."""
    with _open_raw(path) as raw:
        magic = raw.peek(4)[:4]
        if magic.startswith(GZIP_MAGIC):
            yield io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=raw)), BUFFER_BYTES)
        elif magic == ZSTD_MAGIC:
            yield io.BufferedReader(_Zstd(raw), BUFFER_BYTES)
        else:
            yield raw


@contextmanager
def _open_raw(path: Path | None) -> Iterator[io.BufferedReader]:
    if path is None:
        yield cast("io.BufferedReader", sys.stdin.buffer)
        return
    with io.BufferedReader(path.open("rb", buffering=0), BUFFER_BYTES) as file:
        yield cast("io.BufferedReader", file)


class _Zstd(io.RawIOBase):
    """Frames one after another; unlike the library's own reader it tells a cut file from one that ended."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._packed = self._plain = b""
        self._inside = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            # In small pieces: a few bytes of zstd can unpack to a hundred thousand times as many.
            self._packed = self._packed or self._source.read(4096)
            if not self._packed:
                if self._inside:
                    raise EOFError("the file ends inside a zstd frame")
                return 0
            self._unpack()
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def _unpack(self) -> None:
        self._plain, self._inside = self._frame.decompress(self._packed), True
        self._packed = b""
        if self._frame.eof:
            self._packed, self._inside = self._frame.unused_data, False
            self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


def read_lines(file: BinaryIO, name: str) -> Iterator[Row]:
    """Each line that is not blank; one above ``MAX_ROW_BYTES`` is skipped in pieces and reported."""
    number = 0
    while True:
        line = file.readline(MAX_ROW_BYTES + 1)
        if not line:
            return
        number += 1
        if len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
            num_bytes = len(line) + _skip_line(file)
            yield Row(name, number, None, "row-too-large", too_large(num_bytes))
            continue
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.isspace():
            yield Row(name, number, line)


def too_large(num_bytes: int) -> str:
    return f"a row of {num_bytes:,} bytes; the limit is {MAX_ROW_BYTES:,}"


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while piece := file.readline(BUFFER_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped
