"""The pipeline from producer to store as six stages, with the narrow one marked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dashboard.figures import FULL_SPOOL, Node, Numbers, Queue, Run, Stage
from eaglefeed.progress import byte_size

OLD_STORE_JOB_SECONDS = 60.0


def stages(numbers: Numbers, run: Run | None) -> tuple[Stage, ...]:
    """Left to right: Producer, Queue, Engines, Spool, Storage, Stored."""
    extract = next((queue for queue in numbers.queues if queue.name == "extract"), Queue("extract"))
    store = [queue for queue in numbers.queues if queue.name.startswith("store.")]
    ready = sum(node.engine_state == "ready" and not node.is_stale for node in numbers.nodes)
    spool, limit = spool_bytes(numbers.nodes)
    counts = run.counts if run else {}
    found = (
        Stage("Producer", f"{counts.get('unique', 0):,}", "unique samples enqueued"),
        Stage("Queue", f"{extract.waiting:,}", "batches wait for an engine", extract.oldest_waiting_seconds),
        Stage(
            "Engines",
            f"{extract.working:,}",
            f"batches in work, {ready} of {len(numbers.nodes)} engines ready",
            extract.oldest_working_seconds,
        ),
        Stage("Spool", byte_size(spool), f"dumps wait, of {byte_size(limit)}" if limit else "dumps wait"),
        Stage(
            "Storage",
            f"{sum(queue.waiting + queue.working for queue in store):,}",
            f"batches, {sum(queue.working for queue in store):,} of them in work",
            _oldest(queue.oldest_waiting_seconds for queue in store),
        ),
        Stage("Stored", f"{counts.get('stored', 0):,}", "samples in the store", run.quiet_seconds if run else None),
    )
    narrow = narrow_stage(numbers, run)
    return tuple(replace(stage, is_narrow=stage.name == narrow) for stage in found)


def narrow_stage(numbers: Numbers, run: Run | None) -> str | None:
    """The stage the others wait for: backpressure runs from right to left, so the rightmost full one is it."""
    if run is None or run.state in ("empty", "done", "dead", "paused", "cancelled", "closed"):
        return None
    extract = next((queue for queue in numbers.queues if queue.name == "extract"), Queue("extract"))
    store = [queue for queue in numbers.queues if queue.name.startswith("store.")]
    spool, limit = spool_bytes(numbers.nodes)
    oldest = _oldest(queue.oldest_waiting_seconds for queue in store) or 0.0
    if (limit and spool >= FULL_SPOOL * limit) or oldest > OLD_STORE_JOB_SECONDS:
        return "Storage"
    if extract.waiting:
        return "Engines"
    if any(queue.waiting or queue.working for queue in store):
        return "Storage" if not extract.working else "Engines"
    return "Engines" if extract.working else "Producer"


def spool_bytes(nodes: tuple[Node, ...]) -> tuple[int, int]:
    """Bytes in the spools of all nodes, and their limits."""
    return sum(node.spool_bytes for node in nodes), sum(node.spool_max_bytes for node in nodes)


def _oldest(ages: Iterable[float | None]) -> float | None:
    known = [age for age in ages if age is not None]
    return max(known) if known else None
