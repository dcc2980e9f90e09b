"""The entry point that SGLang calls in each of its processes: check the version, hook, verify, or stop the process."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from workers.sglang_plugin import inventory
from workers.sglang_plugin.settings import FAULT_VARIABLE, VARIABLE, is_on_cpu

EXIT_UNSUPPORTED = 78


def register() -> None:
    """Apply every hook of the inventory.

    SGLang only logs a hook that fails and serves without it, so nothing is left to its judgement: a version, a
    signature or a hook that is not as expected ends the process (``docs/engine.md``).
    """
    if VARIABLE not in os.environ:
        return
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if sglang.__version__ != inventory.SUPPORTED_SGLANG:
        _refuse([f"sglang {sglang.__version__} is installed"])
    _refuse_any([problem for hook in inventory.HOOKS if (problem := inventory.mismatch(hook))])
    for hook in inventory.HOOKS:
        HookRegistry.register(hook.target, inventory.function_of(hook), HookType.AROUND)
    _replace_cpu_attention()
    if os.environ.get(FAULT_VARIABLE):
        from workers.sglang_plugin import faults

        faults.announce()
        HookRegistry.register(faults.HANDLE_REQUEST, faults.handle_request, HookType.AROUND)
    HookRegistry.apply_hooks()
    _refuse_any([f"{hook.target} did not apply" for hook in inventory.HOOKS if not _is_applied(hook)])


def _is_applied(hook: inventory.Hook) -> bool:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return hook.target in HookRegistry._patched and hasattr(inventory.target_of(hook), "__wrapped__")


def _replace_cpu_attention() -> None:
    if not is_on_cpu():
        return
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    from workers.sglang_plugin.cpu_attention import create_backend

    ATTENTION_BACKENDS["torch_native"] = create_backend


def _refuse_any(problems: list[str]) -> None:
    if problems:
        _refuse(problems)


def _refuse(problems: list[str]) -> NoReturn:
    print(
        f"eaglefeed: this engine does not start: {'; '.join(problems)}. "
        f"The plugin is made for sglang {inventory.SUPPORTED_SGLANG} (workers/sglang_plugin/INVENTORY.md).",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_UNSUPPORTED)
