"""A row of the input: where it stands, and its bytes or its values, or why it could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_ROW_BYTES = 32 << 20
"""A longer row is rejected unread: 32 MiB is some eight million tokens, more than any model takes."""

ROW_ID_KEYS = ("id", "conversation_id", "uuid", "idx", "prompt_id", "question_id")


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        file: as a person would name it; ``-`` for the standard input.
        line: line of a text file, row of a table, both from 1.
        data: JSON as bytes, or the values of a table's row; None when ``reason`` says why there is nothing.
    """

    file: str
    line: int
    data: bytes | dict[str, Any] | None
    reason: str = ""
    detail: str = ""

    @property
    def num_bytes(self) -> int:
        """A rough size, by which rows are put together for the tokenizers."""
        return len(self.data) if isinstance(self.data, bytes) else 4096


def row_id(record: object) -> str:
    """The row's own name, kept for reports and never used as an identity."""
    if isinstance(record, dict):
        for key in ROW_ID_KEYS:
            value = record.get(key)
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                return str(value)[:200]
    return ""
