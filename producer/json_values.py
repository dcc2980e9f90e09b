"""The values of a JSON array, or of JSON documents one after another, found without loading the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from producer.lines import too_large
from producer.rows import MAX_ROW_BYTES, Row

READ_BYTES = 1 << 20
_SPACE = b" \t\r\n"
_OUTSIDE = re.compile(rb'["\[\]{},]')
_IN_STRING = re.compile(rb'["\\]')


def read_values(file: BinaryIO, name: str) -> Iterator[Row]:
    """A Row for each element of a top-level array, or for each top-level value where there is no array.

    The scan knows strings, escapes and depth only: what stands inside a value is judged when it is parsed, so that
    one broken value costs one row.
    """
    scan = _Scan(name)
    while piece := file.read(READ_BYTES):
        yield from scan.feed(piece)
    yield from scan.finish()


class _Scan:
    """State between two pieces of the file. ``depth`` counts brackets below the level of the values."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_array: bool | None = None
        self.closed = False
        self.depth = 0
        self.in_string = self.escaped = False
        self.value = bytearray()
        self.skipped = 0
        self.line = self.value_line = 1

    def feed(self, piece: bytes) -> Iterator[Row]:
        position = 0
        if self.in_array is None:
            position = self._find_start(piece)
        while position < len(piece):
            position, done = self._step(piece, position)
            if done:
                yield from self._take()

    def finish(self) -> Iterator[Row]:
        whole = self.depth == 0 and not self.in_string
        if self.value.strip(_SPACE) or self.skipped:
            yield from self._take() if whole and not self.in_array else self._cut()
        elif self.in_array and not self.closed:
            yield Row(self.name, self.line, None, "broken-file", "the file ends before its array's ']'")

    def _find_start(self, piece: bytes) -> int:
        stripped = piece.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
        if not stripped:
            self.line += piece.count(b"\n")
            return len(piece)
        start = len(piece) - len(stripped)
        self.line = self.value_line = self.line + piece[:start].count(b"\n")
        self.in_array = stripped[:1] == b"["
        return start + 1 if self.in_array else start

    def _step(self, piece: bytes, position: int) -> tuple[int, bool]:
        """Move to the next byte that matters; whether a value ended there."""
        if self.escaped:
            self.escaped = False
            self._keep(piece[position : position + 1])
            return position + 1, False
        found = (_IN_STRING if self.in_string else _OUTSIDE).search(piece, position)
        if not found:
            self._keep(piece[position:])
            return len(piece), False
        self._keep(piece[position : found.start()])
        return found.end(), self._meet(found.group())

    def _meet(self, mark: bytes) -> bool:
        if self.in_string:
            self.escaped, self.in_string = mark == b"\\", mark != b'"'
            self._keep(mark)
            return False
        if mark == b"," and self.depth == 0:
            return True
        if mark == b"]" and self.depth == 0 and self.in_array:
            self.closed, self.in_array = True, False
            return True
        self._keep(mark)
        self.in_string = mark == b'"'
        if mark in b"[{":
            self.depth += 1
        elif mark in b"]}":
            self.depth = max(self.depth - 1, 0)
            return self.depth == 0 and not self.in_array
        return False

    def _keep(self, part: bytes) -> None:
        if not self.value and not self.skipped:
            kept = part.lstrip(_SPACE)
            self.line += part[: len(part) - len(kept)].count(b"\n")
            self.value_line = self.line
            part = kept
        self.line += part.count(b"\n")
        if len(self.value) + len(part) > MAX_ROW_BYTES or self.skipped:
            self.skipped += len(part) + len(self.value)
            self.value.clear()
        else:
            self.value += part

    def _take(self) -> Iterator[Row]:
        value, skipped = bytes(self.value).strip(_SPACE), self.skipped
        self._reset()
        if skipped:
            yield Row(self.name, self.value_line, None, "row-too-large", too_large(skipped))
        elif value:
            yield Row(self.name, self.value_line, value)

    def _cut(self) -> Iterator[Row]:
        self._reset()
        yield Row(self.name, self.value_line, None, "broken-file", "the file ends inside this value")

    def _reset(self) -> None:
        self.value.clear()
        self.skipped = self.depth = 0
