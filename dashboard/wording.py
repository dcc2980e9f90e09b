"""Numbers as a person reads them, the same on the page and in the terminal."""

from __future__ import annotations

from dashboard.figures import Run
from eaglefeed.progress import byte_size, duration

STATE_SENTENCES = {
    "empty": "Nothing has been enqueued yet",
    "starting": "The engine is starting; no sample has been stored yet",
    "running": "Running",
    "stalled": "Stalled: batches wait, and nothing has been stored",
    "dead": "Stopped: only dead letters are left",
    "paused": "Paused: nodes take no further batch until `eaglefeed run-state resume`",
    "cancelled": "Cancelled: nothing is added any more",
    "closed": "Closed: complete, and nothing is added any more",
    "done": "Done: every enqueued sample has its outcome",
}


def age(seconds: float | None) -> str:
    """``3m 04s``; an em dash where there is none."""
    return "—" if seconds is None else duration(max(0.0, seconds))


def eta(run: Run) -> str:
    """Time left, or why there is none to tell."""
    if run.eta_seconds is None:
        return "unknown"
    return "done" if run.state == "done" else duration(run.eta_seconds)


def rate(per_second: float) -> str:
    """Three significant places, thousands apart."""
    if per_second >= 100:
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second >= 10 else f"{per_second:.2f}"


def megabytes(per_second: float) -> str:
    """MB/s, decimal."""
    return rate(per_second / 1e6)


def ratio(run: Run) -> str:
    return f"{run.compression_ratio:.2f}×" if run.compression_ratio else "—"


def state(run: Run) -> str:
    """What stands under the run's name, with how long it has been quiet."""
    sentence = STATE_SENTENCES[run.state]
    return f"{sentence} for {age(run.quiet_seconds)}" if run.state == "stalled" else sentence


def size(num_bytes: float) -> str:
    return byte_size(num_bytes)
