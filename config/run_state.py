"""Whether a run is open, paused, cancelled or closed: one word in Redis, which producers and GPU nodes heed."""

from __future__ import annotations

from typing import Literal, cast, get_args

from redis import Redis

from config import names
from eaglefeed.errors import RetryableError, UsageError

State = Literal["open", "paused", "cancelled", "closed"]


class RunPaused(RetryableError):
    """No further batch of the run is extracted now; what is extracted is stored."""


def read_state(redis: Redis, run: str) -> State:
    """``open`` unless somebody said otherwise."""
    word = cast("bytes | None", redis.get(names.state_key(run)))
    state = (word or b"open").decode("utf-8", "replace")
    return cast("State", state) if state in get_args(State) else "open"


def write_state(redis: Redis, run: str, state: State) -> None:
    if state == "open":
        redis.delete(names.state_key(run))
    else:
        redis.set(names.state_key(run), state)


def require_extracting(redis: Redis, run: str) -> None:
    """Raises RunPaused unless GPU nodes may take the run's batches."""
    state = read_state(redis, run)
    if state != "open":
        raise RunPaused(f"run {run!r} is {state}; `eaglefeed run-state resume --run RUN.toml` lets it go on")


def require_producing(redis: Redis, run: str) -> None:
    """Raises UsageError when nothing may be added to the run (a paused one takes batches; they wait)."""
    state = read_state(redis, run)
    if state in ("cancelled", "closed"):
        raise UsageError(
            f"run {run!r} is {state}: nothing is added to it. "
            "`eaglefeed run-state resume --run RUN.toml` opens it again; or choose another [run] name"
        )
