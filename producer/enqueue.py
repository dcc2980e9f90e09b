"""Batches into Redis: claimed, counted and enqueued in one transaction, so each sample is enqueued once.

For one batch: WATCH the run's known ids, drop the samples that are among them, then MULTI: the ids become known, the
batch is written down as this producer's, unique samples are counted, the job is enqueued; EXEC. A producer that is
killed anywhere has done all of it or nothing. Another producer's claim in between makes EXEC fail, and the batch is
looked at again.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import WatchError
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from config import counters, names
from config.environment import redis_url, without_password
from config.queues import FAILURE_TTL_SECONDS, RESULT_TTL_SECONDS
from config.run_state import require_producing
from eaglefeed.errors import EnvironmentFault
from eaglefeed.records import Batch, Sample
from producer.interruption import uninterrupted
from storage.run_choice import required_redis

POLL_SECONDS = 0.5


class PackedJob(Job):
    """A job whose payload is packed already: RQ's own zlib pass would search it for repeats that are not there."""

    def to_dict(self, include_meta: bool = True, include_result: bool = True) -> dict[str, Any]:
        data, self._data = self.data, b""
        try:
            record: dict[str, Any] = super().to_dict(include_meta, include_result)
        finally:
            self._data = data
        record["data"] = _zlib(data)
        return record


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of a batch's samples; ``known`` were enqueued by somebody else in the meantime."""

    enqueued: list[Sample]
    known: list[Sample]


class Enqueuer:
    """Enqueues a run's batches, and waits while ``max_queued_batches`` of them are waiting.

    ``on_wait`` is told before every batch how many are.
    """

    def __init__(
        self,
        redis: Redis,
        run: str,
        max_queued_batches: int,
        at_front: bool = False,
        on_wait: Callable[[int], None] = lambda waiting: None,
    ) -> None:
        self.redis, self.run = redis, run
        self.max_queued_batches, self.at_front, self.on_wait = max_queued_batches, at_front, on_wait
        self.queue = Queue(names.EXTRACT_QUEUE, connection=redis, serializer=JSONSerializer, job_class=PackedJob)
        self.nonce = secrets.token_bytes(8)

    def enqueue(self, samples: list[Sample], settle: Callable[[Claim], None] = lambda claim: None) -> Claim:
        """Enqueue those of the samples that nobody has enqueued yet, as one batch.

        ``settle`` is told in the same uninterrupted step what became of them. Raises UsageError when the run has been
        cancelled or closed.
        """
        batch = Batch(self.run, tuple(samples))
        payload = batch.to_payload()
        while True:
            self._wait_for_room()
            with uninterrupted(), self.redis.pipeline() as pipe:
                try:
                    fresh = self._watch_unknown(pipe, samples)
                    if fresh and len(fresh) != len(batch.samples):
                        batch = Batch(self.run, tuple(fresh))
                        payload = batch.to_payload()
                    if fresh:
                        self._commit(pipe, batch, payload)
                except WatchError:  # somebody claimed in between, or the connection broke and the answer was lost
                    if not self._is_mine(batch):
                        continue
                    fresh = list(batch.samples)
                ours = {sample.id for sample in fresh}
                claim = Claim(fresh, [sample for sample in samples if sample.id not in ours])
                settle(claim)
                return claim

    def _watch_unknown(self, pipe: Any, samples: list[Sample]) -> list[Sample]:
        key = names.known_key(self.run)
        pipe.watch(key, names.state_key(self.run))
        require_producing(pipe, self.run)
        known = pipe.smismember(key, [bytes.fromhex(sample.id) for sample in samples])
        return [sample for sample, is_known in zip(samples, known, strict=True) if not is_known]

    def _commit(self, pipe: Any, batch: Batch, payload: dict[str, Any]) -> None:
        pipe.multi()
        pipe.sadd(names.known_key(self.run), *(bytes.fromhex(sample.id) for sample in batch.samples))
        pipe.hset(names.batches_key(self.run), bytes.fromhex(batch.id), self.nonce)
        counters.count(pipe, self.run, {"unique": len(batch.samples), "batches": 1})
        self.queue.enqueue_many([self._job(batch, payload)], pipeline=pipe)
        pipe.execute()

    def _job(self, batch: Batch, payload: dict[str, Any]) -> Any:
        return Queue.prepare_data(
            names.EXTRACT_JOB,
            kwargs={"payload": payload},
            job_id=batch.id,
            timeout=-1,
            result_ttl=RESULT_TTL_SECONDS,
            failure_ttl=FAILURE_TTL_SECONDS,
            description=f"{self.run}: {len(batch.samples)} samples, {batch.num_tokens} tokens",
            at_front=self.at_front,
        )

    def _is_mine(self, batch: Batch) -> bool:
        """Whether a transaction whose answer was lost had gone through."""
        return self.redis.hget(names.batches_key(self.run), bytes.fromhex(batch.id)) == self.nonce

    def _wait_for_room(self) -> None:
        while (waiting := int(self.redis.llen(self.queue.key))) >= self.max_queued_batches:
            self.on_wait(waiting)
            time.sleep(POLL_SECONDS)
        self.on_wait(waiting)


def require_redis(url: str | None) -> None:
    """Raises EnvironmentFault when Redis does not answer now, is older than 6.2, or may forget what it was told."""
    redis = required_redis(url)
    shown = without_password(url or redis_url())
    version = str(redis.info("server")["redis_version"])
    policy = str(redis.info("memory").get("maxmemory_policy", "noeviction"))
    if tuple(map(int, version.split(".")[:2])) < (6, 2):
        raise EnvironmentFault(f"Redis at {shown} is {version}; 6.2 or newer is needed")
    if policy != "noeviction":
        raise EnvironmentFault(
            f"Redis at {shown} has maxmemory-policy {policy}: it would forget jobs and known "
            "samples. Set `maxmemory-policy noeviction`"
        )


def _zlib(data: bytes) -> bytes:
    """What RQ's workers unpack, of zlib's Huffman stage alone: it takes back what base64 added, five times faster."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return packer.compress(data) + packer.flush()
