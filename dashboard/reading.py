"""All figures out of Redis, cheaply: three short pipelines a poll, whatever the number of samples.

Closed minutes never change, so each is read once and remembered; the newest three are read again because nodes'
clocks differ. Older ones are filled in a few dozen a poll, which bounds what one poll can cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from redis import Redis

from config import names
from config.secrets import redact
from dashboard import figures
from dashboard.figures import Node, Numbers, Queue, Run

HISTORY_MINUTES = 24 * 60
OPEN_MINUTES = 3
MINUTES_PER_POLL = 64
REDIS_RETRIES = 2
"""Who watches wants to hear soon that Redis is away; workers are patient (``config.queues.REDIS_RETRIES``)."""

_STORE = "store."


class Reader:
    """Reads ``Numbers`` from one Redis (bytes in, bytes out). Not for use by two threads at once."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._minutes: dict[str, dict[int, dict[str, int]]] = {}
        self._depths: dict[int, dict[str, int]] = {}
        self._models: dict[str, str] = {}

    def read(self, now: float | None = None) -> Numbers:
        """One poll. Raises redis.exceptions.RedisError when Redis does not answer."""
        now = time.time() if now is None else now
        runs, nodes, queue_names = self._names()
        wanted = {run: self._wanted(self._minutes.setdefault(run, {}), now, len(runs)) for run in runs}
        depths_wanted = self._wanted(self._depths, now, 1)
        pipe = self.redis.pipeline(transaction=False)
        for run in runs:
            pipe.hgetall(names.count_key(run))
            pipe.scard(names.counted_key(run))
            pipe.mget(names.state_key(run), names.run_key(run))
            for minute in wanted[run]:
                pipe.hgetall(names.minute_key(run, minute))
        for node in sorted(nodes):
            pipe.hgetall(names.node_key(node))
        for queue in queue_names:
            _ask_queue(pipe, queue)
        pipe.mget([names.depth_key(minute) for minute in depths_wanted])
        answers = iter(pipe.execute())
        counted = {run: self._take_run(run, wanted[run], answers) for run in runs}
        found_nodes = tuple(_node(node, next(answers), seen_at, now) for node, seen_at in sorted(nodes.items()))
        queues = self._queues([_take_queue(name, answers) for name in queue_names], now)
        for minute, text in zip(depths_wanted, next(answers), strict=True):
            self._depths[minute] = _depths(text) if text else {}
        self._forget(now, runs)
        found = [self._run(run, *counted[run], now, queues, found_nodes) for run in runs]
        found.sort(
            key=lambda run: (run.state in ("empty", "done", "cancelled", "closed"), run.quiet_seconds or 0.0, run.name)
        )
        return Numbers(now, tuple(found), queues, found_nodes, dict(self._depths))

    def _names(self) -> tuple[list[str], dict[str, float], list[str]]:
        """Runs; nodes with when they were seen last; queues."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.smembers(names.RUNS_KEY)
        pipe.zrange(names.NODES_KEY, 0, -1, withscores=True)
        pipe.smembers("rq:queues")
        run_names, seen, rq_queues = pipe.execute()
        runs, nodes = sorted(map(_text, run_names)), {_text(node): float(at) for node, at in seen}
        store = {_STORE + node for node in nodes} | {
            name for key in rq_queues if (name := _text(key).removeprefix("rq:queue:")).startswith(_STORE)
        }
        return runs, nodes, [names.EXTRACT_QUEUE, *sorted(store)]

    def _wanted(self, known: dict[int, Any], now: float, sharers: int) -> list[int]:
        """The open minutes, and the newest of the closed ones that have not been read."""
        current, budget = int(now // 60), max(4, MINUTES_PER_POLL // max(1, sharers))
        missing = (minute for minute in range(current - OPEN_MINUTES, current - HISTORY_MINUTES, -1))
        closed: list[int] = []
        for minute in missing:
            if minute not in known:
                closed.append(minute)
                if len(closed) == budget:
                    break
        return [current - back for back in range(OPEN_MINUTES)] + closed

    def _take_run(self, run: str, wanted: list[int], answers: Any) -> tuple[dict[str, int], int, str]:
        counts, counted, (said, settings) = _integers(next(answers)), int(next(answers)), next(answers)
        if settings and run not in self._models:
            self._models[run] = _model_name(settings)
        for minute in wanted:
            self._minutes[run][minute] = _integers(next(answers))
        return counts, counted, _text(said or b"")

    def _queues(self, raw: list[_RawQueue], now: float) -> tuple[Queue, ...]:
        """Ages need the jobs' own hashes: one field of at most two jobs a queue."""
        pipe = self.redis.pipeline(transaction=False)
        for queue in raw:
            pipe.hget(f"rq:job:{queue.oldest_waiting}", "enqueued_at")
            pipe.hget(f"rq:job:{queue.oldest_working}", "started_at")
        dates = pipe.execute()
        return tuple(
            Queue(
                queue.name,
                queue.waiting,
                queue.working,
                queue.scheduled,
                queue.dead,
                _age(dates[2 * place], now),
                _age(dates[2 * place + 1], now),
            )
            for place, queue in enumerate(raw)
        )

    def _run(
        self,
        run: str,
        counts: dict[str, int],
        counted: int,
        said: str,
        now: float,
        queues: tuple[Queue, ...],
        nodes: tuple[Node, ...],
    ) -> Run:
        minutes = dict(self._minutes[run])
        found = tuple(figures.rates(minutes, now, window) for window in figures.WINDOWS_MINUTES)
        waiting = max(0, counts.get("batches", 0) - counted)
        quiet = figures.quiet_seconds(minutes, now)
        eta = figures.eta_seconds(counts, found[figures.WINDOWS_MINUTES.index(figures.ETA_WINDOW_MINUTES)])
        state = figures.run_state(counts, waiting, quiet, queues, nodes, said)
        return Run(run, counts, waiting, found, state, quiet, eta, self._models.get(run, ""), minutes)

    def _forget(self, now: float, runs: Iterable[str]) -> None:
        oldest = int(now // 60) - HISTORY_MINUTES
        for known in [*(self._minutes[run] for run in runs), self._depths]:
            for minute in [minute for minute in known if minute <= oldest]:
                del known[minute]


class _RawQueue:
    """A queue's lengths and the ids of its oldest jobs."""

    __slots__ = ("dead", "name", "oldest_waiting", "oldest_working", "scheduled", "waiting", "working")

    def __init__(self, name: str, answers: Any) -> None:
        self.name = name
        self.waiting, oldest_waiting, self.working, oldest_working, self.dead, self.scheduled = (
            next(answers) for _ in range(6)
        )
        self.oldest_waiting = _text(oldest_waiting or b"")
        # An entry is "<job id>:<execution id>".
        self.oldest_working = _text(oldest_working[0] if oldest_working else b"").partition(":")[0]


def _ask_queue(pipe: Any, name: str) -> None:
    pipe.llen(f"rq:queue:{name}")
    pipe.lindex(f"rq:queue:{name}", 0)
    pipe.zcard(f"rq:wip:{name}")
    pipe.zrange(f"rq:wip:{name}", 0, 0)
    pipe.zcard(f"rq:failed:{name}")
    pipe.zcard(f"rq:scheduled:{name}")


def _take_queue(name: str, answers: Any) -> _RawQueue:
    return _RawQueue(name, answers)


def _node(name: str, fields: dict[bytes, bytes], seen_at: float, now: float) -> Node:
    """A node's own words; when its hash has died with it, only when it was seen last."""
    record = {_text(key): _text(value) for key, value in fields.items()}
    updated, last = _number(record.get("updated_at")) or seen_at, _number(record.get("last_sample_at"))
    return Node(
        name=name,
        device=record.get("device", "?"),
        engine_state=record.get("engine_state", "gone"),
        engine_version=record.get("engine_version", ""),
        spool_bytes=int(_number(record.get("spool_bytes"))),
        spool_max_bytes=int(_number(record.get("spool_max_bytes"))),
        last_sample_seconds=max(0.0, now - last) if last else None,
        updated_seconds=max(0.0, now - updated),
        message=redact(record.get("message", "")),
    )


def _age(date: bytes | None, now: float) -> float | None:
    """Seconds since RQ's ``2026-11-29T16:00:00.000000Z``."""
    try:
        at = datetime.strptime(_text(date or b"").rstrip("Z").partition(".")[0], "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return None
    return max(0.0, now - at.replace(tzinfo=timezone.utc).timestamp())


def _integers(fields: dict[bytes, bytes]) -> dict[str, int]:
    """Counters; what is no number was written by somebody else and is left out."""
    return {_text(name): int(value) for name, value in fields.items() if value.lstrip(b"-").isdigit()}


def _model_name(settings: bytes) -> str:
    """The last part of the run file's model path; "" where the settings cannot be read."""
    try:
        return str(json.loads(settings)["model"]["path"]).rstrip("/").rsplit("/", 1)[-1]
    except (ValueError, KeyError, TypeError):
        return ""


def _depths(text: bytes) -> dict[str, int]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return (
        {str(name): value for name, value in found.items() if isinstance(value, int)} if isinstance(found, dict) else {}
    )


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
