"""How long each recovery takes, measured on the real stack with default settings."""

from __future__ import annotations

import contextlib
import signal
import time

from redis.exceptions import RedisError

from tests.chaos.node import Node
from tests.chaos.stand import Stand, wait_until

LIMIT_SECONDS = 30.0


def node_lost(stand: Stand) -> float:
    """From SIGKILL of a whole node, in the middle of a job, until that job is another worker's or queued."""
    node = stand.nodes[0]
    job_id = _job_in_hand(stand, node)
    worker = stand.redis.hget(f"rq:job:{job_id}", "worker_name") or b""
    for service in [*node.extract, node.store, node.engine]:
        service.kill(down_seconds=60)
    seconds = wait_until(lambda: not _is_in_dead_hands(stand, job_id, worker), 60, "the dead node's job comes back")
    for service in node.services:
        service.down_until = 0.0
    return seconds


def engine_lost(stand: Stand) -> dict[str, float]:
    """From SIGKILL of an engine, in the middle of a job, until each step of its node's way back.

    The job is handed back to the others; the engine has extracted three tokens; its worker has proved it and holds a
    job again.
    """
    node = stand.nodes[-1]
    starts = num_times_ready(node)
    job_id = _job_in_hand(stand, node)
    begun, seconds = time.monotonic(), {}
    for process in node.engine.family()[1:]:
        process.kill()
    wait_until(lambda: not _is_started(stand, job_id), 60, "the job is handed back")
    seconds["job handed back"] = time.monotonic() - begun
    wait_until(lambda: num_times_ready(node) > starts, 120, "the engine is ready again")
    seconds["engine ready"] = time.monotonic() - begun
    _job_in_hand(stand, node)
    seconds["its worker at work"] = time.monotonic() - begun
    return seconds


def redis_back(stand: Stand) -> float:
    """From a killed Redis listening again until a sample is counted."""
    stand.valkey.stop(signal.SIGKILL)
    time.sleep(3)
    stand.valkey.start()
    return _until_stored(stand)


def store_back(stand: Stand) -> float:
    """From a killed store answering again until a sample is counted."""
    stand.seaweed.stop(signal.SIGKILL)
    time.sleep(3)
    stand.seaweed.start()
    return _until_stored(stand)


def _until_stored(stand: Stand) -> float:
    before: list[int] = []

    def is_more() -> bool:
        stored = stand.counted().get("stored")
        if stored is None:
            return False
        before.append(stored)
        return stored > before[0]

    return wait_until(is_more, 90, "a sample is stored again")


def _job_in_hand(stand: Stand, node: Node) -> str:
    """A job that one of the node's extract workers has begun."""
    pids = {service.pid: service for service in node.extract}
    found: list[str] = []

    def look() -> bool:
        with contextlib.suppress(RedisError):
            for entry in stand.redis.zrange("rq:wip:extract", 0, -1):
                job_id = entry.decode().partition(":")[0]
                worker = (stand.redis.hget(f"rq:job:{job_id}", "worker_name") or b"").decode()
                pid = int(stand.redis.hget(f"rq:worker:{worker}", "pid") or 0)
                if pid in pids:
                    found.append(job_id)
                    return True
        return False

    wait_until(look, 120, f"a job in the hands of {node.name}")
    return found[0]


def _is_in_dead_hands(stand: Stand, job_id: str, worker: bytes) -> bool:
    """Whether the job still counts as run by ``worker``."""
    status, now = stand.redis.hmget(f"rq:job:{job_id}", "status", "worker_name")
    return status == b"started" and now == worker


def _is_started(stand: Stand, job_id: str) -> bool:
    return bool(stand.redis.hget(f"rq:job:{job_id}", "status") == b"started")


def num_times_ready(node: Node) -> int:
    """How often the node's engine has become ready."""
    return node.engine.log.read_text("utf-8", "replace").count("engine ready:")
