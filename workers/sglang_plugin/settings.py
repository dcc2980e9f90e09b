"""What the engine process is told: one JSON object in its environment, written by ``workers/engine_command.py``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from config import names

VARIABLE = "EAGLEFEED_ENGINE"
FAULT_VARIABLE = "EAGLEFEED_TEST_FAULT"
CPU_PLATFORM = "eaglefeed_cpu"
"""SGLANG_PLATFORM of an engine without a GPU."""


def is_on_cpu() -> bool:
    """Whether this engine process was started for a CPU."""
    return os.environ.get("SGLANG_PLATFORM") == CPU_PLATFORM


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The part of a run that the engine needs.

    Attributes:
        spool: the run's own folder of the spool, ``<spool>/<run>``.
        layer_ids: ``output_of_layer`` numbering, ascending, -1 the embedding output.
        dtype: of the states that leave the engine.
        store_post_norm: the dumps' last slot is the state after the final norm.
        replica: this engine's number among several of its node, whose dumps then have a folder of their own.
        buffer_bytes: host memory that rows may take between the forward and the disk, in each rank 0.
        writer_threads: files written at a time.
    """

    run: str
    spool: str
    layer_ids: tuple[int, ...]
    num_layers: int
    hidden_size: int
    dtype: str
    engine: str
    plugin: str
    buffer_bytes: int
    store_post_norm: bool = False
    writer_threads: int = 4
    replica: int | None = None

    @property
    def folder(self) -> Path:
        return Path(self.spool)

    @property
    def dump_folder(self) -> Path:
        """Where dumps go; what the run has once lies in ``folder``."""
        return self.folder if self.replica is None else self.folder / names.replica_folder(self.replica)

    @property
    def num_slots(self) -> int:
        """K + 1, or K + 2 with the state after the norm: the captured layers and the final states."""
        return len(self.layer_ids) + 1 + self.store_post_norm

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PluginSettings:
        record = json.loads(text)
        record["layer_ids"] = tuple(record["layer_ids"])
        return cls(**record)


@cache
def plugin_settings() -> PluginSettings:
    """The settings of this process; raises KeyError when it was not started by ``eaglefeed engine``."""
    return PluginSettings.from_json(os.environ[VARIABLE])
