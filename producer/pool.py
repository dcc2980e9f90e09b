"""Rows to samples over all cores, in the order of the rows, with a bounded number of rows under way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from config.run import DataSettings
from eaglefeed.errors import EaglefeedError, EnvironmentFault
from producer.rows import Row
from producer.templates import load_tokenizer
from producer.tokens import Prepared, Preparer

CHUNK_ROWS = 256
CHUNK_BYTES = 1 << 20
SMALL_INPUT_BYTES = 4 << 20
"""Below this, starting processes takes longer than the work."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a process needs to prepare rows."""

    tokenizer_folder: str
    trust_remote_code: bool
    settings: DataSettings
    vocab_size: int

    def preparer(self) -> Preparer:
        tokenizer = load_tokenizer(self.tokenizer_folder, self.trust_remote_code)
        return Preparer(tokenizer, self.settings, self.vocab_size)


def num_processes(jobs: int | None, num_bytes: int) -> int:
    """``jobs`` where it is given; else one a core, or none beside this one for a small input (0)."""
    if jobs is not None:
        return jobs
    return 0 if 0 < num_bytes < SMALL_INPUT_BYTES else len(os.sched_getaffinity(0))


def prepare_in_order(recipe: Recipe, rows: Iterable[Row], processes: int) -> Iterator[list[Prepared]]:
    """Chunks of prepared rows, in the order of the rows. With 0 processes the work is done here.

    Raises:
        EnvironmentFault: a process died, as the kernel kills one when memory is short.
    """
    chunks = chunked(rows)
    if not processes:
        preparer = recipe.preparer()
        yield from map(preparer.prepare, chunks)
        return
    with _pool(recipe, processes) as pool:
        under_way: deque[Future[list[Prepared]]] = deque()
        try:
            for chunk in chunks:
                under_way.append(pool.submit(_prepare_chunk, chunk))
                if len(under_way) > 3 * processes:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise EnvironmentFault(
                "a tokenizing process died (killed for memory?). The same command goes on; --jobs N takes fewer"
            ) from error


def chunked(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in groups of at most ``CHUNK_ROWS`` and about ``CHUNK_BYTES``."""
    chunk: list[Row] = []
    num_bytes = 0
    for row in rows:
        chunk.append(row)
        num_bytes += row.num_bytes
        if len(chunk) >= CHUNK_ROWS or num_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


@contextmanager
def _pool(recipe: Recipe, processes: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_process, (recipe,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_preparer: Preparer | EaglefeedError | None = None


def _start_process(recipe: Recipe) -> None:
    """One core each, deaf to Ctrl-C (the parent ends them), and gone when the parent is."""
    global _preparer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _preparer = recipe.preparer()
    except EaglefeedError as error:  # raised again where the parent hears it; a dead process tells it nothing
        _preparer = error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _prepare_chunk(rows: list[Row]) -> list[Prepared]:
    if isinstance(_preparer, EaglefeedError):
        raise _preparer
    if _preparer is None:
        raise EnvironmentFault("a tokenizing process was not started")
    return _preparer.prepare(rows)
