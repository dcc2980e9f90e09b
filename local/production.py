"""The producer as a child of ``eaglefeed run``, which shows its progress together with the node's."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis import Redis

from config import names
from eaglefeed.errors import EaglefeedError, EnvironmentFault, UsageError
from local.addresses import LocalAddresses
from local.processes import Child
from local.stack import CHECKOUT

_POLL_SECONDS = 0.1
STOP_SECONDS = 30.0


class ProducerChild:
    """``eaglefeed produce`` with its counts as JSON in a log of its own."""

    def __init__(self, data: Sequence[str], run_file: str, addresses: LocalAddresses, logs: Path) -> None:
        log = logs / "producer.log"
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "eaglefeed.cli", "produce", *data, "--run", run_file]
        command += ["--store", addresses.store_url, "--json", "--quiet"]
        environment = {**os.environ, **addresses.environment, "PYTHONPATH": str(CHECKOUT)}
        self._child = Child("producer", command, environment, log)

    def wait_for_first_batch(self, redis: Redis) -> None:
        """Return when it has ended, or when a batch waits for a worker."""
        while not self.is_done and not redis.llen(f"rq:queue:{names.EXTRACT_QUEUE}"):
            time.sleep(_POLL_SECONDS)
        self.check()

    @property
    def is_done(self) -> bool:
        return self._child.exit_code is not None

    def check(self) -> None:
        """Raise the producer's own error, once it has ended with one."""
        code = self._child.exit_code
        if code and code != 1:
            message = self._child.last_words().removeprefix("eaglefeed: ")
            raise {2: UsageError, 3: EnvironmentFault}.get(code, EaglefeedError)(message)

    def summary(self) -> str:
        """Its counts as one line, or what it said when there are none."""
        counts = self._counts()
        if not counts:
            return self._child.last_words()
        shown = {key: value for key, value in counts.items() if value and key != "near_duplicates"}
        return "produced  " + "  ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in shown.items())

    def _counts(self) -> dict[str, Any]:
        for line in reversed(self._child.last_words().splitlines()):
            if line.startswith("{"):
                record: dict[str, Any] = json.loads(line)
                return record
        return {}

    def __enter__(self) -> ProducerChild:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.signal(signal.SIGINT)
        self._child.wait(STOP_SECONDS)
        self._child.kill()


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
