"""What makes two dumps mixable: the identity of a run, written once as ``<run>/run.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from eaglefeed.errors import CorruptData, IdentityMismatch

RUN_SCHEMA_VERSION = 1
LAYER_CONVENTION = "output_of_layer"
"""Layer id k means the residual stream after decoder layer k, counted from 0. -1 is the embedding output."""
PRE_AND_POST_NORM = "pre_and_post_norm"
"""``final_state`` of a run that stores the state after the final norm too, as the engine computed it."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The fields that must agree wherever a run is touched.

    Attributes:
        layer_ids: captured layers, ``output_of_layer`` numbering, ascending; -1 is the embedding output.
        final_state: ``pre_norm``: the residual stream before the final norm is stored; ``pre_and_post_norm``: behind
            it, the engine's own state after the norm too; ``post_norm``: that one alone (imported runs).
        dtype: of the stored states, ``bfloat16``, ``float16`` or ``float32``.
        engine: name and version of the engine that makes the states, ``sglang 0.5.23``.
    """

    run: str
    model: str
    model_config_sha256: str
    tokenizer_sha256: str
    chat_template_sha256: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    layer_ids: tuple[int, ...]
    dtype: str
    max_length: int
    data_preparation: str
    engine: str
    plugin: str
    layer_convention: str = LAYER_CONVENTION
    final_state: str = "pre_norm"

    @property
    def final_states(self) -> tuple[str, ...]:
        """The final states of a token, in the order of their slots, which come behind the captured layers'."""
        return ("pre_norm", "post_norm") if self.final_state == PRE_AND_POST_NORM else (self.final_state,)

    @property
    def num_slots(self) -> int:
        """K + 1, or K + 2 with the state after the norm: the captured layers and the final states."""
        return len(self.layer_ids) + len(self.final_states)

    @property
    def bytes_per_token(self) -> int:
        """Slots * H * bytes per element, before compression."""
        return self.num_slots * self.hidden_size * (4 if self.dtype == "float32" else 2)

    def require_types(self) -> None:
        """Raises TypeError for a value that is not of its kind: JSON may hold anything anywhere."""
        if any(type(layer) is not int or layer < -1 for layer in self.layer_ids):
            raise TypeError(f"layer_ids is {self.layer_ids!r}")
        for name in ("num_layers", "hidden_size", "vocab_size", "max_length"):
            if type(value := getattr(self, name)) is not int or value <= 0:
                raise TypeError(f"{name} is {value!r}")
        texts = [field.name for field in fields(self) if field.type == "str"]
        for name in texts:
            if type(value := getattr(self, name)) is not str:
                raise TypeError(f"{name} is {value!r}")

    def to_json(self) -> bytes:
        record = {"schema_version": RUN_SCHEMA_VERSION, **asdict(self)}
        return json.dumps(record, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> RunIdentity:
        """Raises CorruptData when it is not a run.json of a version this eaglefeed reads."""
        try:
            record: dict[str, Any] = json.loads(text)
            version = record.pop("schema_version")
            if version != RUN_SCHEMA_VERSION:
                raise CorruptData(f"run.json of schema version {version}; this eaglefeed reads {RUN_SCHEMA_VERSION}")
            names = {field.name for field in fields(cls)}
            record["layer_ids"] = tuple(record["layer_ids"])
            identity = cls(**{name: value for name, value in record.items() if name in names})
            identity.require_types()
            return identity
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptData(f"run.json is not a run's identity: {error}") from error

    def require_same(self, other: RunIdentity, where: str) -> None:
        """Raises IdentityMismatch, naming every field in which ``other`` (found at ``where``) differs."""
        mine, theirs = asdict(self), asdict(other)
        differing = [
            f"{name}: {theirs[name]!r} there, {mine[name]!r} here" for name in mine if mine[name] != theirs[name]
        ]
        if differing:
            raise IdentityMismatch(
                f"run {self.run!r} at {where} was made with another identity: "
                + "; ".join(differing)
                + ". Choose another [run] name, or the settings the run was started with."
            )
