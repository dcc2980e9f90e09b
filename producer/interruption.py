"""Ctrl-C waits for the end of a step that must be done whole: a batch in Redis is a batch in the counts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT within the block is handled behind it, as it would have been."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread only
        return
    came: list[tuple[int, FrameType | None]] = []
    usual = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came and callable(usual):
            usual(*came[0])
