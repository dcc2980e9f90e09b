"""An answer leaves only when its file is complete, and the scheduler never waits for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from workers.sglang_plugin import faults, layers
from workers.sglang_plugin.pending_dump import drop

RECEIPT_KEY = "eaglefeed"
_IDLE_SECONDS = 0.0005


@dataclass(slots=True, eq=False)
class Held:
    """A finished request whose file is being written, and how its answer is to be sent."""

    req: Any
    send: Callable[[list[Any]], None]


_held: list[Held] = []


def stream_output(
    original: Callable[..., None],
    streamer: Any,
    reqs: list[Any],
    return_logprob: bool,
    skip_req: Any = None,
    is_idle_batch: bool = False,
) -> None:
    """Hook: hold back the requests whose dumps are not complete, send the others."""

    def send(ready: list[Any]) -> None:
        original(streamer, ready, return_logprob, None, is_idle_batch)

    now: list[Any] = []
    for req in reqs:
        if isinstance(req.finished_reason, FINISH_ABORT):
            drop(req)  # in the middle of its chunks: no file will ever be complete
        if req is not skip_req and getattr(req, "eaglefeed", None) is not None and req.finished():
            if not any(held.req is req for held in _held) and not req.finished_output:
                _held.append(Held(req, send))
        else:
            now.append(req)
    original(streamer, now, return_logprob, skip_req, is_idle_batch)


def before_ingest(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook: once in each turn of the scheduler's loop, send the answers whose files are complete."""
    if faults.is_on():
        layers.apply_fault()
    if _held:
        release()
    return original(scheduler, *args, **kwargs)


def sleep_on_idle(original: Callable[..., Any], scheduler: Any) -> Any:
    """Hook: sleep until the next request, but not on answers that wait for the disk; leave them the core."""
    if _held:
        time.sleep(_IDLE_SECONDS)
        return None
    return original(scheduler)


def release() -> None:
    """Send what is complete."""
    complete = [held for held in _held if held.req.eaglefeed is None or held.req.eaglefeed.is_done]
    if not complete:
        return
    _held[:] = [held for held in _held if held not in complete]
    for held in complete:
        dump = held.req.eaglefeed
        if dump is not None:
            held.req.customized_info = {RECEIPT_KEY: [dump.receipt]}
            held.req.eaglefeed = None
        held.send([held.req])


def abort_request(original: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
    """Hook: an aborted request whose prefill is over takes its file with it."""
    for held in _held:
        if recv_req.abort_all or held.req.rid.startswith(recv_req.rid):
            drop(held.req)
            held.req.finished_reason = FINISH_ABORT("aborted while its file was being written")
    return original(scheduler, recv_req)


def release_aborted(original: Callable[..., Any], scheduler: Any, req: Any) -> Any:
    """Hook: a request that is aborted between its chunks takes the rows that it has gathered with it."""
    drop(req)
    return original(scheduler, req)
