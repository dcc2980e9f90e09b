"""Lines of text files, plain or compressed, read with bounded memory."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from producer.rows import MAX_ROW_BYTES, Row

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BUFFER_BYTES = 1 << 20
BROKEN = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What a damaged or cut compressed file raises while it is read."""


def open_text(path: Path | None) -> io.BufferedReader:
    """The bytes of a file (None: the standard input), unpacked when its first bytes say gzip or zstd."""
    raw = sys.stdin.buffer if path is None else path.open("rb", buffering=BUFFER_BYTES)
    magic = cast("io.BufferedReader", raw).peek(4)[:4]
    if magic.startswith(GZIP_MAGIC):
        return io.BufferedReader(cast("io.RawIOBase", gzip.open(raw)), BUFFER_BYTES)
    if magic == ZSTD_MAGIC:
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(raw, read_across_frames=True)
        return io.BufferedReader(cast("io.RawIOBase", stream), BUFFER_BYTES)
    return cast("io.BufferedReader", raw)


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
