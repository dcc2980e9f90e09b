"""Every place where the plugin touches SGLang: target, kind, expected parameters, and what breaks without it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

SUPPORTED_SGLANG = "0.5.23"

_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_STREAMER = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
_LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_BACKENDS = "sglang.srt.model_executor.model_runner_components.attention_backend_setup"


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook: ``function`` (in this package) goes around ``target`` of SGLang.

    Attributes:
        parameters: of the target in the supported version, in order.
        without: what goes wrong when it does not apply.
    """

    target: str
    function: str
    parameters: tuple[str, ...]
    without: str


HOOKS: tuple[Hook, ...] = (
    Hook(
        "sglang.srt.entrypoints.engine._set_envs_and_config",
        "start_method.set_environment",
        ("server_args",),
        "on a CPU each part of the engine imports all of SGLang again: it starts in twice the time",
    ),
    Hook(
        "sglang.srt.configs.model_config.ModelConfig.__init__",
        "text_only.model_config",
        (
            "self",
            "model_path",
            "trust_remote_code",
            "revision",
            "context_length",
            "model_override_args",
            "is_embedding",
            "enable_multimodal",
            "dtype",
            "quantization",
            "override_config_file",
            "is_draft_model",
            "model_impl",
            "sampling_defaults",
            "quantize_and_serve",
            "is_multi_layer_eagle",
            "encoder_only",
            "language_only",
            "language_model_only",
            "disable_hybrid_swa_memory",
            "model_config_parser",
            "speculative_algorithm",
            "is_draft_quantization_explicit",
        ),
        "vision-language models want an image processor, and have no use for one here",
    ),
    Hook(
        f"{_BACKENDS}.configure_aux_hidden_state_capture",
        "layers.configure_capture",
        (
            "model",
            "eagle_use_aux_hidden_state",
            "eagle_aux_hidden_state_layer_ids",
            "dflash_use_aux_hidden_state",
            "dflash_target_layer_ids",
            "is_dspark",
        ),
        "layers would be counted by each model file's own rule (DeepSeek: shifted by one)",
    ),
    Hook(
        "sglang.srt.layers.layer_boundary.residual.batch.final_norm",
        "capture.final_norm",
        ("hidden_states", "forward_batch", "layernorm", "capture", "finalize_norm", "skip_empty", "read_kwargs"),
        "no final state before the norm",
    ),
    Hook(
        f"{_LOGITS}.forward",
        "capture.logits_forward",
        (
            "self",
            "input_ids",
            "hidden_states",
            "lm_head",
            "logits_metadata",
            "aux_hidden_states",
            "hidden_states_before_norm",
        ),
        "rows without the forward's own token ids and positions",
    ),
    Hook(
        f"{_LOGITS}._get_hidden_states_to_store",
        "capture.states_to_store",
        (
            "self",
            "hidden_states",
            "hidden_states_before_norm",
            "aux_hidden_states",
            "pruned_states",
            "pruned_states_before_norm",
            "aux_pruned_states",
            "sample_indices",
            "logits_metadata",
        ),
        "states stay on the device in SGLang's own layout, without the final state",
    ),
    Hook(
        f"{_PROCESSOR}._append_prefill_hidden_states",
        "pending_dump.append_rows",
        (
            "self",
            "req",
            "logits_output",
            "hidden_state_offset",
            "capture_hidden_mode",
            "extend_input_len",
            "store",
        ),
        "only the last chunk of a prompt, as a JSON list",
    ),
    Hook(
        f"{_STREAMER}._stream_output_generation",
        "receipts.stream_output",
        ("self", "reqs", "return_logprob", "skip_req", "is_idle_batch"),
        "answers that leave before their file is complete",
    ),
    Hook(
        f"{_SCHEDULER}.ingest_requests",
        "receipts.before_ingest",
        ("self", "stop_at_pause"),
        "answers held back are never sent",
    ),
    Hook(
        f"{_SCHEDULER}.maybe_sleep_on_idle",
        "receipts.sleep_on_idle",
        ("self",),
        "answers held back wait a second longer when nothing else arrives",
    ),
    Hook(
        f"{_SCHEDULER}.abort_request",
        "receipts.abort_request",
        ("self", "recv_req"),
        "files of aborted requests stay in the spool",
    ),
    Hook(
        f"{_SCHEDULER}._release_aborted_request",
        "receipts.release_aborted",
        ("self", "req"),
        "the rows of a request that is aborted between its chunks stay",
    ),
    Hook(
        "sglang.srt.managers.schedule_batch.Req.reset_for_retract",
        "pending_dump.reset_for_retract",
        ("self",),
        "a retracted request's rows would be joined with those of its second run",
    ),
)


def target_of(hook: Hook) -> Any:
    """The function that SGLang has at the hook's target; raises AttributeError or ImportError when it has none."""
    return pkgutil.resolve_name(hook.target)


def function_of(hook: Hook) -> Any:
    """Our function for a hook."""
    module, _, name = hook.function.partition(".")
    return getattr(importlib.import_module(f"workers.sglang_plugin.{module}"), name)


def mismatch(hook: Hook) -> str | None:
    """What is wrong with a hook's target in the installed SGLang, or None."""
    try:
        parameters = tuple(inspect.signature(target_of(hook)).parameters)
    except (AttributeError, ImportError, ValueError) as error:
        return f"{hook.target} is missing: {error}"
    if parameters != hook.parameters:
        return f"{hook.target}{parameters} was expected with {hook.parameters}"
    return None
