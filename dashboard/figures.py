"""What the page, /metrics and `eaglefeed status` show: frozen records, and the arithmetic between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

WINDOWS_MINUTES = (1, 5, 60)
ETA_WINDOW_MINUTES = 5
STALLED_SECONDS = 180.0
"""Nothing stored for this long while batches wait: the run is stalled. Two closed minutes and a bit."""

STALE_SECONDS = 30.0
"""A node that has not written its state for this long is marked; its key lives for 60 s."""

FULL_SPOOL = 0.9

Minutes = Mapping[int, Mapping[str, int]]
"""Unix minute → what that minute counted (``config/counters.py``)."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Averages over one window; per second."""

    window_minutes: int
    samples: float = 0.0
    tokens: float = 0.0
    raw_bytes: float = 0.0
    stored_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """One RQ queue: batches waiting, in work, waiting for another attempt, and dead; ages of the oldest."""

    name: str
    waiting: int = 0
    working: int = 0
    scheduled: int = 0
    dead: int = 0
    oldest_waiting_seconds: float | None = None
    oldest_working_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One GPU node as it described itself last (``config/nodes.py``)."""

    name: str
    device: str = "?"
    engine_state: str = "gone"
    engine_version: str = ""
    spool_bytes: int = 0
    spool_max_bytes: int = 0
    last_sample_seconds: float | None = None
    updated_seconds: float | None = None
    message: str = ""

    @property
    def is_stale(self) -> bool:
        return self.updated_seconds is None or self.updated_seconds > STALE_SECONDS

    @property
    def spool_fraction(self) -> float:
        return self.spool_bytes / self.spool_max_bytes if self.spool_max_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """How far one run is.

    Attributes:
        waiting_batches: enqueued, and no manifest counted yet (queued, in work, or dead).
        state: ``empty``, ``starting``, ``running``, ``stalled``, ``dead``, ``done``, or what a person said
            (``config/run_state.py``): ``paused``, ``cancelled``, ``closed``.
        quiet_seconds: since the last stored sample, to the minute; None when nothing was ever counted.
    """

    name: str
    counts: Mapping[str, int]
    waiting_batches: int
    rates: tuple[Rates, ...]
    state: str
    quiet_seconds: float | None
    eta_seconds: float | None
    model: str = ""
    minutes: Minutes = field(default_factory=dict, repr=False)

    @property
    def unique(self) -> int:
        return self.counts.get("unique", 0)

    @property
    def stored(self) -> int:
        return self.counts.get("stored", 0)

    @property
    def percent(self) -> float:
        """Stored of unique, never rounded up to 100."""
        return math.floor(1000 * self.stored / self.unique) / 10 if self.unique else 0.0

    @property
    def compression_ratio(self) -> float | None:
        stored_bytes = self.counts.get("stored_bytes", 0)
        return self.counts.get("raw_bytes", 0) / stored_bytes if stored_bytes else None

    def reasons(self, kind: str) -> dict[str, int]:
        """``rejected`` or ``dead`` samples by reason, most first."""
        prefix = f"{kind}:"
        counts = self.counts.items()
        found = {name.removeprefix(prefix): count for name, count in counts if name.startswith(prefix) and count}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def lengths(self) -> dict[int, int]:
        """Upper bound in tokens (a power of two) → samples stored, ascending."""
        found = {int(upper): count for upper, count in self.reasons("length").items() if upper.isdigit()}
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Stage:
    """One box of the pipeline, left to right."""

    name: str
    depth: str
    detail: str
    age_seconds: float | None = None
    is_narrow: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """One poll: everything that is shown, at one moment."""

    taken_at: float
    runs: tuple[Run, ...]
    queues: tuple[Queue, ...]
    nodes: tuple[Node, ...]
    depths: Minutes = field(default_factory=dict, repr=False)
    redis_memory_bytes: int = 0

    def run(self, name: str | None) -> Run | None:
        """The named run, else the one that moved last."""
        named = [run for run in self.runs if run.name == name]
        return named[0] if named else (self.runs[0] if self.runs else None)

    @property
    def dead(self) -> int:
        return sum(queue.dead for queue in self.queues)


def rates(minutes: Minutes, now: float, window_minutes: int) -> Rates:
    """Averages over the last ``window_minutes``, or since the run began when that is less.

    The minute that lies only partly in the window counts for that part.
    """
    current, into = int(now // 60), now % 60
    seconds = min(window_minutes * 60.0, _age_seconds(minutes, now))
    weights = {current - back: 1.0 for back in range(window_minutes)} | {current - window_minutes: 1 - into / 60}

    def per_second(name: str) -> float:
        counted = sum(minutes.get(minute, {}).get(name, 0) * weight for minute, weight in weights.items())
        return counted / seconds

    return Rates(
        window_minutes, per_second("stored"), per_second("tokens"), per_second("raw_bytes"), per_second("stored_bytes")
    )


def quiet_seconds(minutes: Minutes, now: float) -> float | None:
    """Seconds since a sample was stored (or since the first batch, before that), to the minute."""
    stored = [minute for minute, counted in minutes.items() if counted.get("stored") or counted.get("rejected")]
    if stored:
        return max(0.0, now - 60 * (max(stored) + 1))
    active = [minute for minute, counted in minutes.items() if counted]
    return now - 60 * min(active) if active else None


def eta_seconds(counts: Mapping[str, int], window: Rates) -> float | None:
    """Time left at the window's rate; 0 when nothing is left, None when nothing moves."""
    left = counts.get("unique", 0) - counts.get("stored", 0) - counts.get("rejected", 0) - counts.get("dead", 0)
    if left <= 0:
        return 0.0
    return left / window.samples if window.samples > 0 else None


def run_state(
    counts: Mapping[str, int],
    waiting: int,
    quiet: float | None,
    queues: tuple[Queue, ...],
    nodes: tuple[Node, ...],
    said: str = "",
) -> str:
    """One word for where a run stands; ``said`` is a person's word for it, "" while the run is open."""
    if said:
        return said
    if not counts.get("unique"):
        return "empty"
    if waiting <= 0:
        return "done"
    dead = sum(queue.dead for queue in queues)
    if dead and not any(queue.waiting or queue.working or queue.scheduled for queue in queues):
        return "dead"
    never = not counts.get("stored") and not counts.get("rejected")
    if never and any(node.engine_state in ("starting", "proving") and not node.is_stale for node in nodes):
        return "starting"
    return "stalled" if quiet is None or quiet >= STALLED_SECONDS else "running"


def _age_seconds(minutes: Minutes, now: float) -> float:
    active = [minute for minute, counted in minutes.items() if counted]
    return max(10.0, now - 60 * min(active)) if active else 60.0
