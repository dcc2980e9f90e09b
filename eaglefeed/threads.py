"""Work done by a few threads, its results in the order of its tasks, with a bounded number in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], threads: int) -> Iterator[Result]:
    """``function`` of each task, in order; at most ``2 * threads`` are begun and not yet taken."""
    if threads <= 1:
        yield from map(function, tasks)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="eaglefeed") as pool:
        try:
            for task in tasks:
                pending.append(pool.submit(function, task))
                if len(pending) >= 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
