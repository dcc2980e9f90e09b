"""The figures of the engine's bench, and how they are shown."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens a second, by the clock and (``cpu_s``) by what the engine's processes used of the processors.

    On a machine that others use as well, the clock says little and the processor's seconds still compare. Memory in
    bytes, of all the engine's processes together.
    """

    prompts: int
    tokens: int
    plain_tokens_s: float
    extract_tokens_s: float
    proved_tokens_s: float
    stock_tokens_s: float
    plain_tokens_cpu_s: float
    extract_tokens_cpu_s: float
    stock_tokens_cpu_s: float
    plain_peak_bytes: int
    extract_peak_bytes: int
    buffer_bytes: int
    buffer_peak_bytes: int

    @property
    def extract_to_plain(self) -> float:
        return self.extract_tokens_s / self.plain_tokens_s

    @property
    def extract_to_stock(self) -> float:
        return self.extract_tokens_s / self.stock_tokens_s

    @property
    def extract_to_plain_cpu(self) -> float:
        return self.extract_tokens_cpu_s / self.plain_tokens_cpu_s

    @property
    def extract_to_stock_cpu(self) -> float:
        return self.extract_tokens_cpu_s / self.stock_tokens_cpu_s

    @property
    def extract_adds_us(self) -> float:
        """Microseconds that extraction adds to a token's plain prefill, by the clock; below 0 it is noise."""
        return 1e6 * (1 / self.extract_tokens_s - 1 / self.plain_tokens_s)

    @property
    def stock_adds_us(self) -> float:
        """The same for SGLang's own return: whatever the prefill costs, a token takes this long on top of it."""
        return 1e6 * (1 / self.stock_tokens_s - 1 / self.plain_tokens_s)

    @property
    def extra_bytes(self) -> int:
        """What extraction takes beyond plain prefill, at its peak."""
        return max(0, self.extract_peak_bytes - self.plain_peak_bytes)


def as_json(figures: Figures) -> dict[str, Any]:
    ratios = ("extract_to_plain", "extract_to_stock", "extract_to_plain_cpu", "extract_to_stock_cpu")
    derived = (*ratios, "extract_adds_us", "stock_adds_us", "extra_bytes")
    names = (*(each.name for each in fields(Figures)), *derived)
    return {name: getattr(figures, name) for name in names}


def table(figures: Figures) -> str:
    mib = 1 << 20
    return "\n".join(
        [
            f"{figures.prompts} prompts, {figures.tokens:,} tokens",
            f"  plain prefill             {figures.plain_tokens_s:>8,.0f} tokens/s",
            f"  extraction                {figures.extract_tokens_s:>8,.0f} tokens/s   "
            f"{figures.extract_to_plain:.3f} of plain",
            f"  extraction and proof      {figures.proved_tokens_s:>8,.0f} tokens/s",
            f"  SGLang's own return       {figures.stock_tokens_s:>8,.0f} tokens/s   "
            f"extraction is {figures.extract_to_stock:.1f} times that",
            f"  added to plain prefill    {figures.extract_adds_us:>8,.0f} µs a token by extraction, "
            f"{figures.stock_adds_us:,.0f} by SGLang's own return",
            f"  by processor time         {figures.extract_tokens_cpu_s:>8,.0f} tokens/s   "
            f"{figures.extract_to_plain_cpu:.3f} of plain, {figures.extract_to_stock_cpu:.1f} times SGLang's own",
            f"  engine memory, peak       {figures.plain_peak_bytes / mib:>8,.0f} MiB plain, "
            f"{figures.extract_peak_bytes / mib:,.0f} MiB extracting: {figures.extra_bytes / mib:,.0f} MiB more, "
            f"rows waiting at most {figures.buffer_peak_bytes / mib:,.0f} of {figures.buffer_bytes / mib:,.0f} MiB",
        ]
    )
