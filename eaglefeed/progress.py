"""Progress of long work: done, rate and time left, on one line of a terminal, or a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

TERMINAL_INTERVAL_SECONDS = 0.2
LOG_INTERVAL_SECONDS = 10.0


class Progress:
    """Shows ``label  done/total (percent)  rate  ETA  fields`` on ``file``; silent when ``quiet``."""

    def __init__(
        self,
        label: str,
        total: int | None = None,
        unit: str = "samples",
        quiet: bool = False,
        file: TextIO | None = None,
    ) -> None:
        self.label, self.total, self.unit, self.quiet = label, total, unit, quiet
        self._file = file or sys.stderr
        self._live = self._file.isatty()
        self._started_at = time.monotonic()
        self._shown_at = 0.0 if self._live else self._started_at
        self._done = self._first = 0
        self._fields: dict[str, object] = {}

    def start_from(self, done: int) -> None:
        """What an earlier run had done already: it counts as done, not towards the rate."""
        self._done = self._first = done

    def update(self, done: int, **fields: object) -> None:
        """``done`` in all so far; ``fields`` stand behind the rate, as ``name value``."""
        self._done, self._fields = done, fields
        interval = TERMINAL_INTERVAL_SECONDS if self._live else LOG_INTERVAL_SECONDS
        now = time.monotonic()
        if not self.quiet and now - self._shown_at >= interval:
            self._shown_at = now
            self._show()

    def advance(self, by: int = 1, **fields: object) -> None:
        self.update(self._done + by, **(fields or self._fields))

    def line(self) -> str:
        seconds = max(time.monotonic() - self._started_at, 1e-6)
        rate = (self._done - self._first) / seconds
        parts = [self.label, f"{self._done:,} {self.unit}"]
        if self.total:
            parts[1] = f"{self._done:,}/{self.total:,} {self.unit} ({100 * self._done / self.total:.0f} %)"
        parts.append(f"{rate:,.1f}/s")
        if self.total and rate > 0 and self._done < self.total:
            parts.append(f"ETA {duration((self.total - self._done) / rate)}")
        parts += [f"{name.replace('_', ' ')} {value}" for name, value in self._fields.items()]
        return "  ".join(parts)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.quiet:
            self._show()
            if self._live:
                self._file.write("\n")
                self._file.flush()

    def _show(self) -> None:
        self._file.write(f"\r\x1b[K{self.line()}" if self._live else f"{self.line()}\n")
        self._file.flush()


def duration(seconds: float) -> str:
    """``2d 03h``, ``1h 02m``, ``3m 04s`` or ``5s``."""
    whole = round(seconds)
    for name, small, length in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if whole >= length:
            small_length = {"h": 3600, "m": 60, "s": 1}[small]
            return f"{whole // length}{name} {whole % length // small_length:02d}{small}"
    return f"{whole}s"


def byte_size(num_bytes: float) -> str:
    """Bytes with a binary unit, ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or unit == "TiB":
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} PiB"
