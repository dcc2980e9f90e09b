"""Faults put into the engine on purpose, by tests alone: ``EAGLEFEED_TEST_FAULT=<name>``, loud in the log.

While one is on, the plugin's own refusal is off: the point is that the workers' proof and ``prove`` catch it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workers.sglang_plugin.settings import FAULT_VARIABLE

NAMES = {
    "radix-cache": "the prefix cache is on",
    "stock-chunking": "only a prompt's last chunk is kept, as SGLang does it",
    "layers-shifted": "the model captures one layer further",
    "rows-swapped": "requests of one forward get each other's rows",
    "last-row-dropped": "a dump lacks its last row",
    "row-duplicated": "a row appears twice, and those behind it move",
    "states-duplicated": "the same, with token ids and positions left right",
    "states-zeroed": "all states are zero",
    "one-nan": "one element is NaN",
    "final-norm-applied": "the final state is stored after the norm",
    "token-ids-altered": "the scheduler gets another token than was sent",
    "poison": "a prompt that begins with POISON kills the process",
}

POISON = (13, 7, 13, 7, 13)
"""Token ids that, at the beginning of a prompt, end an engine with the fault ``poison``."""

HANDLE_REQUEST = "sglang.srt.managers.scheduler.Scheduler.handle_generate_request"
CHUNK_TOKENS = 64


@cache
def _variable() -> str:
    return os.environ.get(FAULT_VARIABLE, "")


def is_on() -> bool:
    """Whether this process was started for faults at all."""
    return bool(_variable())


def fault() -> str:
    """The fault of this moment, "" for none (always so outside tests).

    ``@FILE`` names a file that says which: one engine then serves a whole test of faults, one after the other.
    """
    variable = _variable()
    return Path(variable[1:]).read_text().strip() if variable.startswith("@") else variable


def announce() -> None:
    """Say it where nobody can miss it; a name that is not known ends the process."""
    if fault() not in NAMES and not _variable().startswith("@"):
        print(f"eaglefeed: {FAULT_VARIABLE}={fault()}: known are {', '.join(NAMES)}", file=sys.stderr, flush=True)
        os._exit(78)
    print(
        f"eaglefeed: !!! {FAULT_VARIABLE}={_variable()}: {NAMES.get(fault(), 'as the file says')}. "
        "This engine makes WRONG STATES on purpose, for a test !!!",
        file=sys.stderr,
        flush=True,
    )


def passes_the_plugin() -> bool:
    """Whether the plugin's own refusal is off."""
    return fault() not in ("", "poison")


def keeps_middle_chunks() -> bool:
    return fault() != "stock-chunking"


def inputs(wanted: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """The layer inputs that the model is told to capture."""
    if fault() != "layers-shifted":
        return wanted
    return tuple(min(layer + 1, num_layers - 1) for layer in wanted)


def slice_of(start: int, end: int, num_rows: int) -> tuple[int, int]:
    """Which rows of a forward a request gets."""
    if fault() != "rows-swapped":
        return start, end
    length = end - start
    moved = end if end + length <= num_rows else 0
    return moved, moved + length


def alter(token_ids: Any, positions: Any, states: Any, is_last: bool) -> tuple[Any, Any, Any]:
    """A request's rows as they are written."""
    name = fault()
    if name == "last-row-dropped" and is_last:
        return token_ids[:-1], positions[:-1], states[:-1]
    if name == "row-duplicated":
        order = _duplicate(len(token_ids))
        return token_ids[order], positions[order], states[order]
    if name == "states-duplicated":
        return token_ids, positions, states[_duplicate(len(token_ids))]
    if name == "states-zeroed":
        return token_ids, positions, np.zeros_like(states)
    if name == "one-nan":
        states = states.copy()
        states[len(states) // 2, 0, 0] = np.iinfo(states.dtype).max  # all exponent and mantissa bits set
        return token_ids, positions, states
    return token_ids, positions, states


def num_rows(wanted: int) -> int:
    """How many rows the dump's header promises."""
    return wanted - 1 if fault() == "last-row-dropped" else wanted


def stores_post_norm() -> bool:
    return fault() == "final-norm-applied"


def handle_request(original: Callable[..., Any], scheduler: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook, while faults are on: the first token becomes its neighbour."""
    if fault() == "token-ids-altered":
        recv_req.input_ids[0] = recv_req.input_ids[0] + 1 if recv_req.input_ids[0] == 0 else recv_req.input_ids[0] - 1
    return original(scheduler, recv_req, *args, **kwargs)


def die_of_poison(batch: Any) -> None:
    """With the fault ``poison``: end the process as a kernel crash would, when the tokens are in a forward."""
    if fault() == "poison":
        tokens = batch.input_ids.tolist()
        if any(tuple(tokens[at : at + len(POISON)]) == POISON for at in range(len(tokens))):
            os.kill(os.getpid(), signal.SIGKILL)


def _duplicate(num_rows: int) -> Any:
    middle = num_rows // 2
    return np.insert(np.arange(num_rows - 1), middle, middle) if num_rows > 1 else np.arange(num_rows)
