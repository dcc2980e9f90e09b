"""How SGLang is started for a run: its arguments and its environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from config.model_identity import model_folder
from config.run import EngineSettings, RunSettings
from eaglefeed.errors import UsageError
from eaglefeed.identity import RunIdentity
from workers.sglang_plugin.faults import CHUNK_TOKENS
from workers.sglang_plugin.plan import command_line_ids, plan_capture
from workers.sglang_plugin.settings import CPU_PLATFORM, FAULT_VARIABLE, VARIABLE, PluginSettings

CHECKOUT = Path(__file__).resolve().parent.parent
PLUGIN_FOLDER = CHECKOUT / "workers" / "sglang_plugin" / "dist"
CPU_FORWARDS_IN_POOL = 4
_NO_GRAPHS = ("--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled")
"""Nothing is decoded, and a graph's buffers are written again before their rows have left."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, what its environment adds to ours, and the folder of its dumps, which must be there."""

    command: list[str]
    environment: dict[str, str]
    folder: Path | None = None


def device_of(engine: EngineSettings) -> str:
    """``cuda`` or ``cpu``; ``auto`` takes CUDA when PyTorch finds one."""
    if engine.device != "auto":
        return engine.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def prefill_tokens(settings: RunSettings) -> int:
    """Tokens of one forward: as set, else enough for the longest sample and for a well filled pass."""
    engine = settings.engine
    return engine.max_prefill_tokens or max(settings.data.max_length, 8192)


def engine_launch(
    settings: RunSettings, identity: RunIdentity, spool: Path, host: str, port: int, replica: int = 0
) -> Launch:
    """What starts one replica, with its dumps in ``<spool>/<run>``; of several, in a folder of its own there."""
    device = device_of(settings.engine)
    plugin = PluginSettings(
        run=settings.name,
        spool=str((spool / settings.name).resolve()),
        layer_ids=identity.layer_ids,
        num_layers=identity.num_layers,
        hidden_size=identity.hidden_size,
        dtype=identity.dtype,
        engine=identity.engine,
        plugin=identity.plugin,
        buffer_bytes=settings.engine.dump_buffer_bytes,
        replica=replica if settings.engine.replicas > 1 else None,
        store_post_norm="post_norm" in identity.final_states,
    )
    arguments = _common(settings, identity, host, port)
    arguments += _cpu(settings) if device == "cpu" else _cuda(settings)
    command = [sys.executable, "-m", "sglang.launch_server", *arguments, *settings.engine.extra_args]
    return Launch(command, _environment(settings, plugin, device, replica), plugin.dump_folder)


def _common(settings: RunSettings, identity: RunIdentity, host: str, port: int) -> list[str]:
    engine = settings.engine
    layer_ids = command_line_ids(plan_capture(identity.layer_ids, identity.num_layers))
    arguments = [
        *("--model-path", str(model_folder(settings))),
        *("--dtype", identity.dtype),
        *("--host", host),
        *("--port", str(port)),
        "--skip-tokenizer-init",
        "--sleep-on-idle",  # SGLang spins otherwise, and takes a core from whoever feeds it
        *([] if _fault() == "radix-cache" else ["--disable-radix-cache"]),
        *("--chunked-prefill-size", str(_chunk_tokens(engine))),
        *("--max-prefill-tokens", str(prefill_tokens(settings))),
        "--enable-return-aux-hidden-states",
        *("--speculative-algorithm", "EAGLE3"),  # the name of a capture convention here; nothing is speculated
        *("--return-aux-hidden-state-layer-ids", *map(str, layer_ids)),
        *("--tp-size", str(engine.tensor_parallel)),
        *("--dp-size", str(engine.data_parallel)),
        *("--log-level", "warning"),
    ]
    return arguments + (["--trust-remote-code"] if settings.model.trust_remote_code else [])


def _fault() -> str:
    return os.environ.get(FAULT_VARIABLE, "")


def _chunk_tokens(engine: EngineSettings) -> int:
    if _fault() == "stock-chunking":
        return engine.chunked_prefill_tokens or CHUNK_TOKENS
    return engine.chunked_prefill_tokens or -1


def _cpu(settings: RunSettings) -> list[str]:
    engine = settings.engine
    pool = engine.max_total_tokens or max(CPU_FORWARDS_IN_POOL * prefill_tokens(settings), settings.data.max_length)
    return [
        *("--device", "cpu"),
        *("--attention-backend", "torch_native"),
        # Without a bound, start-up spends half a minute taking all of memory; without the fraction, with chunking
        # off, SGLang's own choice turns negative and start-up fails.
        *("--max-total-tokens", str(pool)),
        *("--mem-fraction-static", str(engine.memory_fraction or 0.3)),
        *_NO_GRAPHS,
    ]


def _cuda(settings: RunSettings) -> list[str]:
    engine = settings.engine
    arguments = list(_NO_GRAPHS)
    if engine.max_total_tokens:
        arguments += ["--max-total-tokens", str(engine.max_total_tokens)]
    if engine.memory_fraction is not None:
        arguments += ["--mem-fraction-static", str(engine.memory_fraction)]
    return arguments


def _environment(settings: RunSettings, plugin: PluginSettings, device: str, replica: int) -> dict[str, str]:
    path = [str(PLUGIN_FOLDER), str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(path), VARIABLE: plugin.to_json(), "SGLANG_PLUGINS": "eaglefeed"}
    environment["PYTHONWARNINGS"] = "ignore"  # SGLang warns of every kernel that a machine lacks
    engine = settings.engine
    if device == "cpu":
        environment |= {"SGLANG_PLATFORM": CPU_PLATFORM, "CUDA_VISIBLE_DEVICES": ""}
        environment["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads; a process with threads is not to be forked
        if engine.tensor_parallel * engine.data_parallel > 1:
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = _threads_of_ranks(engine)
    elif engine.replicas > 1:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(_devices_of(engine, replica))
    return environment


def _devices_of(engine: EngineSettings, replica: int) -> list[str]:
    """A replica's own GPUs, out of those that this process may see (Slurm hands out some of a node's)."""
    share = engine.tensor_parallel * engine.data_parallel
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = visible.split(",") if visible else [str(index) for index in range(share * engine.replicas)]
    if len(devices) < share * engine.replicas:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={visible}: tensor_parallel * data_parallel * replicas = {share * engine.replicas}"
        )
    return devices[replica * share :][:share]


def _threads_of_ranks(engine: EngineSettings) -> str:
    """The cores of each rank, ``0|1``."""
    ranks = engine.tensor_parallel * engine.data_parallel
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // ranks)
    groups = [cores[(rank * share) % len(cores) :][:share] for rank in range(ranks)]
    return "|".join(",".join(map(str, group)) for group in groups)
