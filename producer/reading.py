"""How far the reading of the sources is, for the progress line's rates and its ETA."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from eaglefeed.progress import duration
from producer.rows import Row
from producer.sources import Source
from producer.tally import Tally


class Reading:
    """Counts bytes of rows against the sizes of plain files; packed files and streams give no ETA."""

    def __init__(self, sources: list[Source]) -> None:
        self.total_bytes = sum(source.num_bytes for source in sources)
        self.knows_end = all(source.is_plain for source in sources)
        self.read_bytes = 0
        self._started_at = time.monotonic()

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.read_bytes += row.num_bytes
            yield row

    def fields(self, tally: Tally) -> dict[str, object]:
        """What stands behind the rate of conversations."""
        seconds = max(time.monotonic() - self._started_at, 1e-6)
        fields: dict[str, object] = {
            "tokens/s": f"{tally.tokens / seconds:,.0f}",
            "unique": f"{tally.unique:,}",
            "duplicates": f"{tally.duplicate:,}",
            "rejects": f"{tally.rejected.total():,}",
        }
        if self.knows_end and 0 < self.read_bytes < self.total_bytes:
            fields["ETA"] = duration(seconds * (self.total_bytes - self.read_bytes) / self.read_bytes)
        return fields
