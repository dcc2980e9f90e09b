"""Files are written by threads behind the scheduler's back, within a bound on the memory that waits for the disk."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from workers.sglang_plugin.settings import plugin_settings


class ByteBudget:
    """How many bytes of rows may wait for the disk; one piece larger than the whole budget passes alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._freed = threading.Condition()
        self.peak_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    def take(self, num_bytes: int) -> None:
        """Wait until there is room: the scheduler then runs no further forward, which is the bound."""
        with self._freed:
            self._freed.wait_for(lambda: self._used == 0 or self._used + num_bytes <= self._limit)
            self._used += num_bytes
            self.peak_bytes = max(self.peak_bytes, self._used)

    def give(self, num_bytes: int) -> None:
        with self._freed:
            self._used -= num_bytes
            self._freed.notify_all()


class WriterThreads:
    """Threads with a queue each; what has the same key runs in order, on the same thread."""

    def __init__(self, count: int) -> None:
        self._queues: list[queue.SimpleQueue[Callable[[], Any]]] = [queue.SimpleQueue() for _ in range(count)]
        for index, tasks in enumerate(self._queues):
            threading.Thread(target=_run, args=(tasks,), name=f"eaglefeed-writer-{index}", daemon=True).start()

    def submit(self, key: int, task: Callable[[], Any]) -> None:
        self._queues[key % len(self._queues)].put(task)


@cache
def budget() -> ByteBudget:
    """This process's budget."""
    return ByteBudget(plugin_settings().buffer_bytes)


@cache
def writers() -> WriterThreads:
    """This process's writers, started with the first dump."""
    return WriterThreads(plugin_settings().writer_threads)


def disk_reason(error: OSError) -> str:
    """``spool-full`` where room would help, else ``spool-disk``."""
    return "spool-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "spool-disk"


def _run(tasks: queue.SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        tasks.get()()
