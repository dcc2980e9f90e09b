"""Which layers are captured: one convention, "output of decoder layer k", set and read back on whatever model loads.

SGLang's models capture the *input* of a layer, so the output of layer k is input ``k + 1``; -1, the embedding
output, is input 0. Most models cannot capture input n, the last layer's output: it is the final state before the
norm, which is stored anyway, so that tensor is used. ``set_eagle3_layers_to_capture`` shifts by each model file's own
rule (``deepseek_v2.py``: by one only when the first id is 1), so its result is not relied on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from workers.sglang_plugin import capture, faults, norm
from workers.sglang_plugin.plan import plan_capture
from workers.sglang_plugin.settings import plugin_settings

EXIT_WRONG_LAYERS = 79
_FLAG = "_is_layer_to_capture"
_LEAVES_OUT_RESIDUAL = ("Gemma3TextModel",)
"""Model files that capture a layer's input without the residual that the next norm adds (found by ``prove``)."""

_stacks: list[Any] = []


def configure_capture(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Hook: let SGLang configure the model, then set the layers ourselves and read them back."""
    model = kwargs["model"] if "model" in kwargs else args[0]
    settings = plugin_settings()
    original(*args, **kwargs)
    plan = plan_capture(settings.layer_ids, settings.num_layers)
    stack = layer_stack(model)
    if len(stack.layers) != settings.num_layers:
        _refuse(f"{type(model).__name__} has {len(stack.layers)} layers, and its config says {settings.num_layers}")
    set_layers(stack, faults.inputs(plan.inputs, settings.num_layers))
    if type(stack).__name__ in _LEAVES_OUT_RESIDUAL:
        for index in plan.inputs:
            stack.layers[index].register_forward_pre_hook(capture.keep_layer_input, with_kwargs=True)
    captured = read_layers(stack)
    if captured != plan.inputs and not faults.passes_the_plugin():
        _refuse(f"{type(model).__name__} captures the inputs of layers {list(captured)}, wanted {list(plan.inputs)}")
    _stacks[:] = [stack]
    final_norm = norm.find_norm(stack)
    if final_norm is None:
        _refuse(f"{type(model).__name__} has no final norm under a known name")
    final_norm.register_forward_hook(capture.keep_norm_input)
    norm.record(model, final_norm)


def apply_fault() -> None:
    """Set the layers again, as the test's fault of this moment wants them."""
    settings = plugin_settings()
    plan = plan_capture(settings.layer_ids, settings.num_layers)
    for stack in _stacks:
        set_layers(stack, faults.inputs(plan.inputs, settings.num_layers))


def captured_inputs() -> tuple[int, ...]:
    """What the loaded model captures, read from it now: the worker compares it with the run's layers."""
    return read_layers(_stacks[0])


def layer_stack(model: Any) -> Any:
    """The one inner module that owns ``layers_to_capture`` and the decoder layers; ends the process without it."""
    found = [module for module in model.modules() if hasattr(module, "layers_to_capture") and hasattr(module, "layers")]
    if len(found) != 1:
        _refuse(f"{type(model).__name__} has {len(found)} layer stacks that can capture; exactly one is supported")
    return found[0]


def read_layers(stack: Any) -> tuple[int, ...]:
    """The inputs that the model will really capture: its list and, where layers carry a flag, the flags."""
    listed = tuple(stack.layers_to_capture)
    flags = tuple(index for index, layer in enumerate(stack.layers) if getattr(layer, _FLAG, False))
    return flags if flags and flags != listed else listed


def set_layers(stack: Any, inputs: tuple[int, ...]) -> None:
    """Tell the model which inputs to capture, in its list and, where its layers carry one, by their flags."""
    uses_flags = any(getattr(layer, _FLAG, False) for layer in stack.layers)
    stack.layers_to_capture = list(inputs)
    for index, layer in enumerate(stack.layers):
        if uses_flags or hasattr(layer, _FLAG):
            setattr(layer, _FLAG, index in inputs)


def _refuse(problem: str) -> NoReturn:
    print(f"eaglefeed: the engine stops: {problem}", file=sys.stderr, flush=True)
    os._exit(EXIT_WRONG_LAYERS)
