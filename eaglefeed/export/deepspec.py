"""DeepSpec's cache, version 2: ``shard-{:05d}.bin`` of raw arrays, ``samples.idx`` of places, ``manifest.json``."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from eaglefeed.bits import bits_of_torch
from eaglefeed.errors import UsageError
from eaglefeed.export.exporter import Exporter, Unit, several_a_file
from eaglefeed.export.files import publish, save_text

SAMPLES_PER_FILE = 256
_RECORD = struct.Struct("<QIIQQQQQ")


class DeepSpecExporter(Exporter):
    """Per sample, end to end: ids int32, attention u8, loss u8 (each ``[T]``), aux ``[T, K*H]``, final ``[T, H]``
    post-norm, both bfloat16."""

    name: ClassVar[str] = "deepspec"
    num_layers: ClassVar[int | None] = None

    @property
    def samples_per_file(self) -> int:
        return self.options.samples_per_file or SAMPLES_PER_FILE

    def require_carried(self) -> None:
        super().require_carried()
        if self.dataset.identity.vocab_size > 2**31:
            raise UsageError(f"deepspec holds int32 token ids; a vocabulary of {self.dataset.identity.vocab_size}")

    def units(self) -> Iterator[Unit]:
        return several_a_file(len(self.dataset), self.samples_per_file, lambda file: f"shard-{file:05d}.bin")

    def write(self, path: Path, numbers: range, samples: Sequence[dict[str, Any]]) -> None:
        with path.open("wb") as file:
            for sample in samples:
                ids, mask = sample["token_ids"].numpy(), sample["loss_mask"].numpy()
                file.write(ids.astype("<i4").tobytes())
                file.write(b"\1" * len(ids))
                file.write(mask.astype("u1").tobytes())
                file.write(bits_of_torch(sample["aux"]).data)
                file.write(bits_of_torch(sample["final"]).data)

    def write_extras(self, folder: Path) -> list[str]:
        publish(folder / "samples.idx", lambda path: path.write_bytes(b"".join(self._records())))
        return ["samples.idx", save_text(folder, "manifest.json", json.dumps(self._manifest(), indent=1))]

    def _records(self) -> Iterator[bytes]:
        """56 bytes a sample: number, shard, length, and the offsets of its five arrays, all known from the lengths."""
        width, captured = self.dataset.identity.hidden_size, len(self.dataset.layer_ids)
        lengths = self.dataset.lengths.tolist()
        for file, unit in enumerate(self.units()):
            offset = 0
            for number in unit.numbers:
                T = lengths[number]
                offsets = []
                for num_bytes in (4 * T, T, T, 2 * T * captured * width, 2 * T * width):
                    offsets.append(offset)
                    offset += num_bytes
                yield _RECORD.pack(number, file, T, *offsets)

    def _manifest(self) -> dict[str, Any]:
        identity = self.dataset.identity
        return {
            "version": 2,
            "target_model": identity.model,
            "num_samples": len(self.dataset),
            "num_shards": -(-len(self.dataset) // self.samples_per_file),
            "hidden_size": identity.hidden_size,
            "target_layer_ids": self.layer_numbers(),
            "dtype": "bfloat16",
        }
