"""Faults put into the engine on purpose, by tests alone: ``EAGLEFEED_TEST_FAULT=<name>``, loud in the log."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from workers.sglang_plugin.settings import FAULT_VARIABLE

NAMES = (
    "radix-cache",
    "stock-chunking",
)


@cache
def fault() -> str:
    """The fault of this process, "" for none (always so outside tests)."""
    return os.environ.get(FAULT_VARIABLE, "")


def announce() -> None:
    """Say it where nobody can miss it; a name that is not known ends the process."""
    if fault() not in NAMES:
        print(f"eaglefeed: {FAULT_VARIABLE}={fault()}: known are {', '.join(NAMES)}", file=sys.stderr, flush=True)
        os._exit(78)
    print(
        f"eaglefeed: !!! {FAULT_VARIABLE}={fault()}: this engine makes WRONG STATES on purpose, for a test !!!",
        file=sys.stderr,
        flush=True,
    )


def passes_the_plugin() -> bool:
    """Whether the plugin's own refusal is off, so that the workers' proof must catch the fault."""
    return bool(fault())


def keeps_middle_chunks() -> bool:
    return fault() != "stock-chunking"


def swap(start: int, end: int) -> tuple[int, int]:
    return start, end


def alter(token_ids: Any, positions: Any, states: Any) -> tuple[Any, Any, Any]:
    return token_ids, positions, states


def num_rows(wanted: int) -> int:
    return wanted
