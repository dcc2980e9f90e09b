"""The run file: frozen settings, validated with the offending value and its place."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tomllib
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from config import environment
from config.names import checked_name
from eaglefeed.errors import UsageError

PositiveInt = Annotated[int, Field(gt=0)]
MIB = 1 << 20


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelSettings(_Section):
    """``[model]``: which states of which model.

    Attributes:
        path: checkpoint folder or hub name, as transformers and SGLang take it.
        layers: "output of decoder layer k, from 0", -1 the embedding output; default ``[1, n//2-1, n-4]``.
    """

    path: str
    layers: tuple[int, ...] | None = None
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    trust_remote_code: bool = False

    @field_validator("layers", mode="before")
    @classmethod
    def _layers_from_toml(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("layers")
    @classmethod
    def _layers_are_unique(cls, layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if layers is not None:
            if not layers or len(set(layers)) != len(layers):
                raise ValueError("layers must be at least one id, none repeated")
            if min(layers) < -1:
                raise ValueError("layer ids count from 0; -1 alone names the embedding output")
        return layers


class DataSettings(_Section):
    """``[data]``: from conversations to samples and batches."""

    max_length: PositiveInt = 4096
    over_length: Literal["reject", "truncate_turn", "truncate"] = "reject"
    shape: Literal["auto", "sharegpt", "messages", "alpaca", "pairs", "text", "tokenized"] = "auto"
    supervise: Literal["all", "last"] = "all"
    thinking: bool = True
    batch_tokens: PositiveInt = 32_768
    max_queued_batches: PositiveInt = 256


class EngineSettings(_Section):
    """``[engine]``: one SGLang process a replica, patched.

    Attributes:
        device: ``auto`` takes CUDA when there is one.
        max_prefill_tokens: tokens of one forward; at least ``data.max_length`` unless chunked. 0 = chosen from it.
        max_total_tokens: KV pool; 0 = SGLang's choice on a GPU, and four forwards on a CPU.
        chunked_prefill_tokens: 0 = off (one pass, the default); else the chunk, and the plugin joins the rows.
        store_post_norm: store the engine's own state after the final norm too; it belongs to the run's identity.
        extra_args: passed to ``sglang.launch_server`` as they are.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    tensor_parallel: PositiveInt = 1
    data_parallel: PositiveInt = 1
    replicas: PositiveInt = 1
    max_prefill_tokens: Annotated[int, Field(ge=0)] = 0
    max_total_tokens: Annotated[int, Field(ge=0)] = 0
    chunked_prefill_tokens: Annotated[int, Field(ge=0)] = 0
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    dump_buffer_bytes: PositiveInt = 1024 * MIB
    store_post_norm: bool = False
    start_timeout_seconds: PositiveInt = 1800
    request_timeout_seconds: PositiveInt = 600
    hang_timeout_seconds: PositiveInt = 120
    extra_args: tuple[str, ...] = ()

    @field_validator("extra_args", mode="before")
    @classmethod
    def _arguments_from_toml(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class WorkerSettings(_Section):
    """``[workers]``: the processes in front of an engine and behind it."""

    extract: PositiveInt = 2
    store: PositiveInt = 1
    attempts: PositiveInt = 3
    failures_before_pause: PositiveInt = 16


class SpoolSettings(_Section):
    """``[spool]``: where dumps wait on the node's own disk. Marks are fractions of the budget."""

    path: str = ".eaglefeed/spool"
    max_bytes: PositiveInt = 64 << 30
    max_disk_percent: Annotated[float, Field(gt=0, le=95)] = 80.0
    high_mark: Annotated[float, Field(gt=0, le=1)] = 0.9
    low_mark: Annotated[float, Field(gt=0, le=1)] = 0.7


class StoreSettings(_Section):
    """``[store]``: where shards go. Credentials come from boto3's own chain, never from here."""

    url: str = ".eaglefeed/store"
    part_bytes: PositiveInt = 32 * MIB
    upload_concurrency: PositiveInt = 4
    max_attempts: PositiveInt = 5
    encode_threads: PositiveInt = 2
    encoding: Literal["lossless", "raw", "fp8_per_token"] = "lossless"


class RunSettings(_Section):
    """One run file."""

    name: str
    model: ModelSettings
    data: DataSettings = DataSettings()
    engine: EngineSettings = EngineSettings()
    workers: WorkerSettings = WorkerSettings()
    spool: SpoolSettings = SpoolSettings()
    store: StoreSettings = StoreSettings()

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str) -> str:
        try:
            return checked_name(name, "name")
        except UsageError as error:
            raise ValueError(str(error)) from error


def load_run(path: str | Path, overrides: dict[str, Any] | None = None) -> RunSettings:
    """Read a run file; ``overrides`` are ``{"store.url": …}`` from the command line.

    Raises:
        UsageError: with the file, the key, the value and, for an unknown key, the nearest known one.
    """
    path = Path(path)
    try:
        record = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such run file. `eaglefeed init` writes one; presets are in config/.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    return parse_run(record, str(path), overrides)


def load_node_run() -> RunSettings:
    """The settings of this node's processes: ``EAGLEFEED_RUN``'s file, with what the environment overrides.

    Raises UsageError when the variable is not set, or as ``load_run`` does.
    """
    path = environment.run_file()
    if not path:
        raise UsageError("EAGLEFEED_RUN is not set: it names the run file of this node's workers")
    return load_run(path, environment.setting_overrides())


def parse_run(record: dict[str, Any], where: str, overrides: dict[str, Any] | None = None) -> RunSettings:
    """Validate settings that came from ``where``; raises UsageError as ``load_run`` does."""
    for dotted, value in (overrides or {}).items():
        section, _, key = dotted.rpartition(".")
        target = record.setdefault(section, {}) if section else record
        target[key] = value
    try:
        return RunSettings.model_validate(record)
    except ValidationError as error:
        raise UsageError("\n".join(_sentence(where, problem) for problem in error.errors())) from error


def _sentence(where: str, problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        near = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"{where}: unknown key {place!r}; {hint}"
    if problem["type"] == "missing":
        return f"{where}: {place!r} is missing"
    return f"{where}: {place} = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    model: Any = RunSettings
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        model = annotation if get_origin(annotation) is None else get_args(annotation)[0]
    return sorted(model.model_fields)
