"""On a CPU the engine's parts are forked from its launcher, which has imported all of SGLang already.

SGLang spawns them, and each imports everything once more: nine seconds of a core for each of two parts, most of a small
engine's start (docs/engine.md). On a GPU that stays as it is, since a CUDA context does not survive a fork.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.sglang_plugin.settings import is_on_cpu


def set_environment(original: Callable[..., None], server_args: Any) -> None:
    """Hook: behind SGLang's own choice of a start method, take ``fork`` where nothing can go wrong with it.

    That is on a CPU, with one thread in this process, and without the data-parallel controller, which starts its
    schedulers from threads.
    """
    original(server_args)
    if is_on_cpu() and server_args.dp_size == 1 and _num_threads() == 1:
        multiprocessing.set_start_method("fork", force=True)


def _num_threads() -> int:
    """Of this process, those of its libraries included; 0 where the system does not tell."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return 0
