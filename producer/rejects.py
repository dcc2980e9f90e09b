"""``rejects.jsonl``: every row that did not become a sample, with file, line and reason, each once.

The file is only ever appended to, a whole line at a time, so that several producers and interrupted ones may share it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from eaglefeed.errors import EnvironmentFault
from producer.tokens import Prepared


class RejectsFile:
    """Opened for appending; a row that an earlier start of the command reported is not reported again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = _digests(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise EnvironmentFault(f"{path} cannot be written: {error}. --rejects FILE names another place") from error

    def add(self, row: Prepared) -> None:
        record = {
            "file": row.file,
            "line": row.line,
            "row_id": row.row_id,
            "reason": row.reason,
            "detail": row.detail,
        }
        line = json.dumps(record).encode() + b"\n"  # ASCII: half a surrogate pair in a detail stays writable
        digest = _digest(line)
        if digest not in self._written:
            self._written.add(digest)
            os.write(self._descriptor, line)

    def close(self) -> None:
        os.close(self._descriptor)


def _digests(path: Path) -> set[bytes]:
    if not path.exists():
        return set()
    with path.open("rb") as file:
        return {_digest(line) for line in file}


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=8).digest()
