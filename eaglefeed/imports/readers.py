"""A reader for each trainer's dumps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from eaglefeed.errors import EnvironmentFault, UsageError
from eaglefeed.imports.foreign import BadDump, ForeignSample, Reader, layers_of, load_torch, row_of, tensor


class SpecForgeReader:
    """``*.ckpt`` and ``*.ckpt.gz``: ``hidden_state`` is the final state, post-norm."""

    name = "specforge"

    def paths(self, folder: Path) -> Iterator[Path]:
        yield from sorted(path for path in folder.rglob("*") if path.name.endswith((".ckpt", ".ckpt.gz")))

    def read(self, path: Path) -> ForeignSample:
        record = load_torch(path)
        final = row_of(tensor(record, "hidden_state"), "hidden_state", 2)
        aux = row_of(tensor(record, "aux_hidden_state"), "aux_hidden_state", 2)
        return ForeignSample(*_ids_and_mask(record), layers_of(aux, final.shape[-1]), final, "post_norm")


class AngelSlimReader:
    """``*.ckpt`` with a batch axis: ``hidden_states`` are the captured layers, ``target_hiddens`` the final state."""

    name = "angelslim"

    def paths(self, folder: Path) -> Iterator[Path]:
        yield from sorted(folder.rglob("*.ckpt"))

    def read(self, path: Path) -> ForeignSample:
        record = load_torch(path)
        final = row_of(tensor(record, "target_hiddens"), "target_hiddens", 2)
        aux = row_of(tensor(record, "hidden_states"), "hidden_states", 2)
        return ForeignSample(*_ids_and_mask(record), layers_of(aux, final.shape[-1]), final, "post_norm")


class ModelOptReader:
    """``*.pt``: ``hidden_states`` is the final state, pre-norm where ``hidden_states_prenorm`` says so."""

    name = "modelopt"

    def paths(self, folder: Path) -> Iterator[Path]:
        yield from sorted(folder.rglob("*.pt"))

    def read(self, path: Path) -> ForeignSample:
        record = load_torch(path)
        final = row_of(tensor(record, "hidden_states"), "hidden_states", 2)
        aux = row_of(tensor(record, "aux_hidden_states"), "aux_hidden_states", 2)
        kind = "pre_norm" if bool(record.get("hidden_states_prenorm", False)) else "post_norm"
        return ForeignSample(*_ids_and_mask(record, mask_needed=False), layers_of(aux, final.shape[-1]), final, kind)


class SpeculatorsReader:
    """``hidden_states/hs_{row}.safetensors`` beside an Arrow data set; the last slot is the final state, pre-norm."""

    name = "speculators"

    def __init__(self) -> None:
        self._folder = Path()

    def paths(self, folder: Path) -> Iterator[Path]:
        """One path for every row of the Arrow data set, whether the file is there or not, then files without a row."""
        self._folder = folder
        self.__dict__.pop("_rows", None)
        states = folder / "hidden_states"
        expected = [states / f"hs_{row}.safetensors" for row in range(len(self._rows))]
        yield from expected
        yield from sorted(set(states.glob("hs_*.safetensors")) - set(expected))

    def read(self, path: Path) -> ForeignSample:
        record = _load_safetensors(path)
        states = row_of(tensor(record, "hidden_states"), "hidden_states", 3)
        if "hidden_states_scales" in record:
            states = states.float() * record["hidden_states_scales"]
        token_ids = row_of(tensor(record, "token_ids"), "token_ids", 1).long()
        row = self._row(path)
        if row["input_ids"] != token_ids.tolist():
            raise BadDump(
                "mismatched-ids",
                f"its {len(token_ids)} token ids are not those of its Arrow row ({len(row['input_ids'])} ids): "
                "the trainer drops the sample with a warning",
            )
        mask = token_ids.new_tensor(row["loss_mask"])
        return ForeignSample(token_ids, mask, states[:, :-1], states[:, -1], "pre_norm")

    def _row(self, path: Path) -> dict[str, Any]:
        number = path.stem.removeprefix("hs_")
        if not number.isdigit() or int(number) >= len(self._rows):
            raise BadDump("mismatched-ids", "no row of the Arrow data set belongs to it")
        row: dict[str, Any] = self._rows[int(number)]
        return row

    @cached_property
    def _rows(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise EnvironmentFault("the speculators format is an Arrow data set: pip install datasets") from error
        try:
            return datasets.load_from_disk(str(self._folder)).with_format(None)
        except FileNotFoundError as error:
            raise UsageError(f"{self._folder} is not a data set that speculators saved: {error}") from error


def reader_for(name: str) -> Reader:
    """Raises KeyError for a format that has no reader."""
    reader: Reader = READERS[name]()
    return reader


READERS: dict[str, type[Any]] = {
    reader.name: reader for reader in (SpecForgeReader, SpeculatorsReader, ModelOptReader, AngelSlimReader)
}


def _ids_and_mask(record: dict[str, Any], mask_needed: bool = True) -> tuple[Any, Any]:
    token_ids = row_of(tensor(record, "input_ids"), "input_ids", 1).long()
    if "loss_mask" not in record and not mask_needed:
        return token_ids, token_ids.new_ones(len(token_ids))
    mask = row_of(tensor(record, "loss_mask"), "loss_mask", 1).long()
    if len(mask) != len(token_ids):
        raise BadDump("shape", f"a loss mask of {len(mask)} beside {len(token_ids)} token ids")
    return token_ids, mask


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        record: dict[str, Any] = load_file(path)
    except FileNotFoundError as error:
        raise BadDump("missing", "the Arrow data set has its row, and the file is not there") from error
    except (SafetensorError, OSError) as error:
        raise BadDump("unreadable", f"{path.stat().st_size} bytes that safetensors cannot load: {error}") from error
    return record
