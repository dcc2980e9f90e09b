"""Work on a store or disk that may be away: tried again, ever more slowly, until it works or the worker stops."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from eaglefeed.errors import EnvironmentFault, RetryableError, StoreUnavailable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

stop_requested = threading.Event()
"""Set by the worker's signal handler: waiting work gives its job back instead of waiting on."""


def _say_nothing(message: str) -> None:
    """Where nobody listens, the log is enough."""


on_wait: Callable[[str], None] = _say_nothing
"""Told each time why work waits; the worker sets it, so that the page can say which store or disk is away."""


def patiently(action: Callable[[], Result], what: str) -> Result:
    """The result of ``action``, tried for as long as it takes while it raises what may pass.

    A fault that a person must mend (refused credentials, a missing bucket) is waited for as well: the dumps are safe in
    the spool, and a job given up would have to be found again.

    Raises:
        StoreUnavailable: the worker is to stop; the job goes back to its queue.
    """
    pause, attempt = FIRST_PAUSE_SECONDS, 1
    while True:
        try:
            return action()
        except (RetryableError, EnvironmentFault) as error:
            if stop_requested.is_set():
                raise StoreUnavailable(f"{what} is given back, not done: {error}") from error
            wait = pause * random.uniform(0.5, 1.0)
            log.warning("%s, attempt %d: %s; again in %.1f s", what, attempt, error, wait)
            on_wait(f"{what} waits: {error}")
            stop_requested.wait(wait)
            pause, attempt = min(2 * pause, LONGEST_PAUSE_SECONDS), attempt + 1
