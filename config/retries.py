"""When to try again: which faults pass by themselves, and how long to pause before the next attempt."""

from __future__ import annotations

import errno
import random

from redis import exceptions as redis_errors

from eaglefeed.errors import RetryableError

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0

_REDIS_PASSES = (
    redis_errors.ConnectionError,  # BusyLoadingError too: a server that reads its file back
    redis_errors.TimeoutError,
    redis_errors.ReadOnlyError,  # a replica that has not become the master yet
    redis_errors.OutOfMemoryError,
    redis_errors.ClusterDownError,
    redis_errors.MasterDownError,
)
_REDIS_PASSES_BY_WORD = ("MISCONF", "NOREPLICAS", "TRYAGAIN", "UNBLOCKED")
"""MISCONF: its disk is full. UNBLOCKED: a master that became a replica while a worker waited for a job."""

_DISK_PASSES = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


class Backoff:
    """The pause before the next attempt, longer with each failure in a row, with jitter.

    Nodes that failed together do not come back together.
    """

    def __init__(self, first_seconds: float = FIRST_PAUSE_SECONDS, longest_seconds: float = LONGEST_PAUSE_SECONDS):
        self._first, self._longest = first_seconds, longest_seconds
        self.failures = 0

    def next_seconds(self) -> float:
        pause = min(self._first * 2.0 ** min(self.failures, 32), self._longest)
        self.failures += 1
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0


def is_redis_fault(error: BaseException) -> bool:
    """Whether Redis is away, full or not writable now."""
    if isinstance(error, _REDIS_PASSES):
        return True
    return isinstance(error, redis_errors.ResponseError) and str(error).startswith(_REDIS_PASSES_BY_WORD)


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed later though nobody changes it: engine, store, Redis or disk was at fault."""
    if isinstance(error, RetryableError) or is_redis_fault(error):
        return True
    return isinstance(error, OSError) and error.errno in _DISK_PASSES
