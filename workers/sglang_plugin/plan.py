"""From "output of decoder layer k" to the layer inputs that SGLang's models capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """How the slots of a dump come out of a forward.

    Attributes:
        inputs: layers whose input the model captures, ascending; never empty (models return no list for none).
        slots: for each slot of the dump, the index into ``inputs``; None for the final state before the norm. The one
            after it is no layer's, and comes behind these.
    """

    inputs: tuple[int, ...]
    slots: tuple[int | None, ...]


def plan_capture(layer_ids: Sequence[int], num_layers: int) -> CapturePlan:
    """Translate ``output_of_layer`` ids; raises ValueError with the valid range for ids that cannot be."""
    wrong = [layer for layer in layer_ids if not -1 <= layer < num_layers]
    if wrong or len(set(layer_ids)) != len(layer_ids) or not layer_ids:
        raise ValueError(
            f"layers {list(layer_ids)}: each once, from 0 to {num_layers - 1} (or -1, the embedding output)"
        )
    ordered = sorted(layer_ids)
    inputs = tuple(layer + 1 for layer in ordered if layer != num_layers - 1) or (0,)
    slots = tuple(None if layer == num_layers - 1 else inputs.index(layer + 1) for layer in ordered)
    return CapturePlan(inputs, (*slots, None))


def command_line_ids(plan: CapturePlan) -> list[int]:
    """As many ids for ``--return-aux-hidden-state-layer-ids`` as the model will capture.

    SGLang checks the number at the first forward and refuses negative ids, so -1 is stood for by an unused id.
    """
    ids = [layer - 1 for layer in plan.inputs if layer > 0]
    if len(ids) < len(plan.inputs):
        ids.insert(0, next(layer for layer in range(len(ids) + 1) if layer not in ids))
    return ids
