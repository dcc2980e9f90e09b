"""A job as a worker takes it from Redis: bounded before memory is taken, and without what RQ would run or call.

RQ imports and runs callbacks named in a job's hash, posts to its web hooks, and unpacks its data however large it is.
Whoever can write to Redis could use that; a worker of eaglefeed runs listed functions and nothing else.
"""

from __future__ import annotations

import zlib
from typing import Any, cast

from redis.exceptions import ResponseError
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.utils import decode_redis_hash

from eaglefeed.errors import CorruptData
from eaglefeed.records import MAX_BATCH_TOKENS

MAX_JOB_BYTES = 8 * MAX_BATCH_TOKENS
"""Of a job's data, packed or not: four bytes a token, base64, and as much again for names and numbers."""

_TIMES = ("created_at", "enqueued_at", "started_at", "ended_at", "last_heartbeat")
_TEXTS = ("data", "meta", "origin", "description", "worker_name", "status")
_FIELDS = frozenset((*_TIMES, *_TEXTS, "timeout", "ttl", "result_ttl", "failure_ttl"))


class QueuedJob(Job):
    """``unfit`` says why a job that was read cannot be run; such a job becomes a dead letter, unread."""

    unfit: str = ""

    def refresh(self) -> None:
        """Ask Redis for the size before the job; raises NoSuchJobError as RQ's own does."""
        num_bytes = self._num_bytes()
        if num_bytes > MAX_JOB_BYTES:
            return self._refuse({}, f"a job of {num_bytes} bytes; at most {MAX_JOB_BYTES} are read")
        record = cast("dict[bytes, bytes]", self.connection.hgetall(self.key))
        if not record:
            raise NoSuchJobError(f"No such job: {self.key}")
        self.restore(record)
        return None

    def restore(self, raw_data: Any) -> None:
        """Take the known fields; what cannot be read makes the job unfit instead of ending the worker."""
        record = {name: value for name, value in decode_redis_hash(raw_data).items() if name in _FIELDS}
        if "data" not in record:
            raise NoSuchJobError(f"{self.key} holds no job")
        try:
            super().restore({**record, "data": b""})
            self.data = _unpack(record["data"])
        except NoSuchJobError:
            raise
        except Exception as error:  # whatever somebody wrote there
            self._refuse(record, f"its record cannot be read: {error}")

    def require_fit(self) -> None:
        """Raises CorruptData when the job may not be looked at further."""
        if self.unfit:
            raise CorruptData(f"job {self.id}: {self.unfit}")
        if self.instance is not None or list(self.args) or not isinstance(self.kwargs, dict):
            raise CorruptData(f"job {self.id}: a job has keyword arguments alone")

    def _num_bytes(self) -> int:
        try:
            return int(cast("int | None", self.connection.memory_usage(self.key, samples=0)) or 0)
        except ResponseError:  # a Redis that keeps MEMORY from its users
            return int(cast("int", self.connection.hstrlen(self.key, "data")))

    def _refuse(self, record: dict[str, Any], reason: str) -> None:
        self.unfit = reason
        self.data = b'["", null, [], {}]'
        origin = record.get("origin") or self.connection.hget(self.key, "origin") or b""
        self.origin = origin.decode("utf-8", "replace")[:200]
        self.timeout, self._status = -1, JobStatus.QUEUED


def _unpack(packed: bytes) -> bytes:
    """RQ's zlib, stopped at the bound; data that is not packed is taken as it is, as RQ does."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MAX_JOB_BYTES)
    except zlib.error:
        return packed
    if unpacker.unconsumed_tail:
        raise CorruptData(f"data of more than {MAX_JOB_BYTES} bytes")
    return data
