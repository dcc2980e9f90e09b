"""Names that machines share: queues, job functions, Redis keys."""

from __future__ import annotations

import re

from eaglefeed.errors import CorruptData, UsageError

EXTRACT_QUEUE = "extract"
EXTRACT_JOB = "workers.jobs.extract_batch"
STORE_JOB = "storage.jobs.store_batch"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked_name(name: str, what: str) -> str:
    """A run or node name as it may stand in keys, paths and queue names; raises UsageError otherwise."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"{what} {name!r}: use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        )
    return name


def store_queue(node: str) -> str:
    """The queue of one node: its dumps lie on its own disk."""
    return f"store.{node}"


MAX_REPLICAS = 1000
_DUMP = re.compile(r"(?:r(?:0|[1-9][0-9]{0,2})/)?[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def replica_folder(replica: int) -> str:
    """Where one of several engines of a node keeps its dumps, below the run's folder of the spool."""
    if not 0 <= replica < MAX_REPLICAS:
        raise UsageError(f"replica {replica}: a node has 1 to {MAX_REPLICAS} engines")
    return f"r{replica}"


def checked_dump(name: str) -> str:
    """A dump's name below the run's folder, with at most a replica's own folder before it.

    Raises CorruptData for any other: a name out of Redis never becomes a path outside.
    """
    if not isinstance(name, str) or not _DUMP.fullmatch(name):
        raise CorruptData(f"{name!r} names a dump outside its folder")
    return name


def known_key(run: str) -> str:
    """SET of sample ids (16 raw bytes each) that were enqueued or are stored."""
    return f"eaglefeed:{run}:known"


def count_key(run: str) -> str:
    """HASH of the run's counters (``config/counters.py``)."""
    return f"eaglefeed:{run}:count"


def minute_key(run: str, minute: int) -> str:
    """HASH of what one minute (Unix time // 60) counted."""
    return f"eaglefeed:{run}:minute:{minute}"


def counted_key(run: str) -> str:
    """SET of batch ids (16 raw bytes each) whose outcome has been counted: counting happens once."""
    return f"eaglefeed:{run}:counted"


def batches_key(run: str) -> str:
    """HASH of batch ids (16 raw bytes each) whose samples are in ``known``: the producer (8 bytes) or ``store``."""
    return f"eaglefeed:{run}:batches"


def run_key(run: str) -> str:
    """STRING: the run file's settings as JSON, as the producer used them; no secret is in it."""
    return f"eaglefeed:{run}:settings"


def state_key(run: str) -> str:
    """STRING: paused, cancelled or closed; absent while the run is open (``config/run_state.py``)."""
    return f"eaglefeed:{run}:state"


def suspicion_key(run: str, batch_id: str) -> str:
    """STRING: JSON of which samples of a batch may have ended an engine (``workers/suspicion.py``)."""
    return f"eaglefeed:{run}:suspicion:{batch_id}"


RUNS_KEY = "eaglefeed:runs"
NODES_KEY = "eaglefeed:nodes"
"""ZSET: node names by when they were heard of last."""


def node_key(node: str) -> str:
    """HASH with a time to live: a node's state, engine, spool and last sample."""
    return f"eaglefeed:node:{node}"


def depth_key(minute: int) -> str:
    """STRING: JSON of queue and spool depths in that minute, sampled by a dashboard (``dashboard/depths.py``)."""
    return f"eaglefeed:depth:{minute}"


def owner_key(node: str) -> str:
    """STRING with a time to live: which spool the node's name belongs to (``config/nodes.py``)."""
    return f"eaglefeed:node-owner:{node}"


BREAKER_PREFIX = "eaglefeed:breaker:"


def breaker_key(node: str, queue: str) -> str:
    """HASH: failures in a row of a node's workers of one queue (``config/breaker.py``)."""
    return f"{BREAKER_PREFIX}{node}|{queue}"
