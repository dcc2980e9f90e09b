"""Runs as an operator meets them, written into a real Redis in the contract's own keys."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone

from redis import Redis
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from config import counters, names, nodes, queues

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Scene:
    """A run's past: samples a minute for ``minutes`` minutes, ending ``quiet_minutes`` ago."""

    run: str = "qwen3-8b-sharegpt"
    unique: int = 24_000
    samples_per_minute: int = 180
    minutes: int = 45
    quiet_minutes: int = 0
    rejected_per_minute: int = 1
    tokens_per_sample: int = 1_100
    samples_per_batch: int = 30
    waiting: int = 40
    storing: int = 3
    working: int = 0
    engine_state: str = "ready"
    spool_fraction: float = 0.31
    node_age_seconds: float = 4.0


def play(redis: Redis, scene: Scene) -> None:
    """Write the scene: counters, minutes, depths, queues and nodes."""
    redis.sadd(names.RUNS_KEY, scene.run)
    redis.set(names.run_key(scene.run), '{"model": {"path": "/models/Qwen3-8B"}}')
    _count(redis, scene)
    extract, store = queues.extract_queue(redis), queues.store_queue(redis, "gpu-01")
    for _ in range(scene.waiting):
        enqueue(extract, names.EXTRACT_JOB, f"{scene.run}: {scene.samples_per_batch} samples, 32,768 tokens")
    for _ in range(scene.storing):
        enqueue(store, names.STORE_JOB, f"{scene.run}: {scene.samples_per_batch} samples")
    for _ in range(scene.working):
        start(redis, enqueue(extract, names.EXTRACT_JOB, f"{scene.run}: in work").id)
    report_node(redis, "gpu-01", scene, "NVIDIA H200")
    report_node(redis, "gpu-02", scene, "NVIDIA H200", spool_fraction=scene.spool_fraction * 0.8)


def enqueue(queue, function: str, description: str):  # type: ignore[no-untyped-def]
    """A job with a broken payload: a worker that takes it makes a dead letter of it."""
    return queue.enqueue_call(
        function,
        kwargs={"payload": {"version": 0}} | ({"dumps": {}} if function == names.STORE_JOB else {}),
        job_id=uuid.uuid4().hex,
        timeout=-1,
        description=description,
        result_ttl=0,
        failure_ttl=queues.FAILURE_TTL_SECONDS,
    )


def start(redis: Redis, job_id: str) -> None:
    """A waiting batch as it stands while a worker has it."""
    redis.lrem("rq:queue:extract", 0, job_id)
    redis.zadd("rq:wip:extract", {f"{job_id}:{uuid.uuid4().hex}": time.time() + 600})
    began = datetime.fromtimestamp(time.time() - 21, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    redis.hset(f"rq:job:{job_id}", mapping={"status": "started", "started_at": began})


def report_node(redis: Redis, node: str, scene: Scene, device: str, spool_fraction: float | None = None) -> None:
    fraction = scene.spool_fraction if spool_fraction is None else spool_fraction
    now = time.time()
    fields: dict[str, str | int | float] = {
        "updated_at": now - scene.node_age_seconds,
        "device": device,
        "engine_state": scene.engine_state,
        "engine_version": "sglang 0.5.23",
        "spool_bytes": int(fraction * 512 * GIB),
        "spool_max_bytes": 512 * GIB,
        "last_sample_at": now - 60 * scene.quiet_minutes - 2,
        "message": "",
    }
    nodes.publish(redis, node, fields)


def fail_jobs(redis: Redis, count: int) -> None:
    """Let a real worker take ``count`` waiting batches, whose payloads are broken: real dead letters."""
    worker = SimpleWorker([queues.extract_queue(redis)], connection=redis, serializer=JSONSerializer)
    worker.work(burst=True, max_jobs=count, logging_level="CRITICAL")


def _count(redis: Redis, scene: Scene) -> None:
    now = int(time.time() // 60)
    total: dict[str, int] = {}
    pipe = redis.pipeline(transaction=False)
    for back in range(scene.minutes + scene.quiet_minutes, scene.quiet_minutes - 1, -1):
        amounts = _minute(scene, back)
        for field, amount in amounts.items():
            total[field] = total.get(field, 0) + amount
            pipe.hset(names.minute_key(scene.run, now - back), field, amount)
    for back in range(scene.minutes + scene.quiet_minutes, 0, -1):
        wave = (back * 7) % 11
        depths = f'{{"extract": {scene.waiting + wave}, "store": {wave // 3}, "spool_bytes": {(90 + 5 * wave) * GIB}, '
        pipe.set(names.depth_key(now - back), depths + f'"spool_max_bytes": {1024 * GIB}, "dead": 0}}')
    batches = -(-scene.unique // scene.samples_per_batch)
    counted = batches - scene.waiting - scene.storing - scene.working
    pipe.hset(names.count_key(scene.run), mapping={**total, "unique": scene.unique, "batches": batches})
    for _ in range(max(0, counted)):
        pipe.sadd(names.counted_key(scene.run), uuid.uuid4().bytes)
    pipe.execute()


def _minute(scene: Scene, back: int) -> dict[str, int]:
    samples = scene.samples_per_minute + (back * 13) % 23 - 11 if scene.samples_per_minute else 0
    tokens = samples * scene.tokens_per_sample
    lengths = [300] * (samples // 6) + [700] * (samples // 3) + [1500] * (samples // 3)
    lengths += [3000] * (samples - len(lengths))
    return {
        "stored": samples,
        "tokens": tokens,
        "raw_bytes": tokens * 32_768,
        "stored_bytes": int(tokens * 32_768 / 1.49),
        "rejected": scene.rejected_per_minute,
        **({"rejected:too-long": scene.rejected_per_minute} if scene.rejected_per_minute else {}),
        **counters.length_amounts(lengths),
    }
