"""The next batch's shard is encoded while this batch's is uploaded: one ahead, and only where a worker is alone.

It is a guess at what the queue will hand out next. A wrong guess costs the work and nothing else: the file is removed.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from eaglefeed.errors import EaglefeedError
from eaglefeed.records import Batch
from eaglefeed.shard_writer import WrittenShard

log = logging.getLogger(__name__)

Encode = Callable[[Batch, dict[str, str], Path], WrittenShard]


@dataclass(frozen=True, slots=True)
class PreparedShard:
    """A shard file that lies ready, or will."""

    batch_id: str
    path: Path
    written: Future[WrittenShard]


class Lookahead:
    """Holds at most one prepared shard.

    Args:
        encode: writes a batch's shard to a path.
        path_of: where a batch's shard file goes.
    """

    def __init__(self, redis: Redis, queue: Queue, encode: Encode, path_of: Callable[[str], Path]) -> None:
        self._redis, self._queue, self._encode, self._path_of = redis, queue, encode, path_of
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="eaglefeed-lookahead")
        self._prepared: PreparedShard | None = None
        atexit.register(self.close)

    def begin(self, in_hand: str) -> None:
        """Start on the batch that waits first, unless something is prepared or other workers share the queue.

        Args:
            in_hand: the batch whose shard is uploaded now. A job that was taken for dead and delivered again waits
                first while it is worked on; its file must not be written a second time under the upload.
        """
        if self._prepared is not None:
            return
        try:
            found = self._next_batch()
        except (RedisError, NoSuchJobError, EaglefeedError, KeyError, TypeError) as error:
            log.debug("no look ahead: %s", error)
            return
        if found is not None and found[0].id != in_hand:
            batch, dumps = found
            path = self._path_of(batch.id)
            self._prepared = PreparedShard(batch.id, path, self._pool.submit(self._encode, batch, dumps, path))

    def take(self, batch_id: str) -> WrittenShard | None:
        """The prepared shard of this batch, waited for; None when another was prepared or it did not work out."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        try:
            written = prepared.written.result()
        except (EaglefeedError, OSError) as error:
            log.debug("the shard prepared for batch %s did not work out: %s", prepared.batch_id, error)
            return None
        if prepared.batch_id == batch_id and prepared.path.exists():
            return written
        prepared.path.unlink(missing_ok=True)
        return None

    def close(self) -> None:
        """Stop, and remove what is prepared."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._prepared is not None:
            self._prepared.path.unlink(missing_ok=True)
            self._prepared = None

    def _next_batch(self) -> tuple[Batch, dict[str, str]] | None:
        waiting = cast("list[Any]", self._redis.lrange(self._queue.key, 0, 0))
        if not waiting or Worker.count(connection=self._redis, queue=self._queue) > 1:
            return None
        job_id = waiting[0].decode() if isinstance(waiting[0], bytes) else str(waiting[0])
        kwargs = Job.fetch(job_id, connection=self._redis, serializer=JSONSerializer).kwargs
        dumps = kwargs["dumps"]
        return (Batch.from_payload(kwargs["payload"]), dumps) if dumps else None
