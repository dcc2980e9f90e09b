"""From "output of decoder layer k" to the layer inputs that SGLang's models capture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.sglang_plugin.plan import command_line_ids, plan_capture


def test_the_output_of_a_layer_is_the_input_of_the_next() -> None:
    """Outputs 1, 14 and 26 are inputs 2, 15 and 27, in this order, and the final state comes last."""
    plan = plan_capture((1, 14, 26), 30)
    assert plan.inputs == (2, 15, 27)
    assert plan.slots == (0, 1, 2, None)
    assert command_line_ids(plan) == [1, 14, 26]


def test_the_embedding_output_is_the_first_layers_input() -> None:
    """-1 is captured as input 0; SGLang's command line, which refuses negative ids, gets an unused one."""
    plan = plan_capture((-1, 0, 3), 8)
    assert plan.inputs == (0, 1, 4)
    assert command_line_ids(plan) == [1, 0, 3]


def test_the_last_layer_is_the_final_state_before_the_norm() -> None:
    """The output of the last layer has no next layer's input; the same tensor is taken before the norm."""
    plan = plan_capture((2, 7), 8)
    assert plan.inputs == (3,)
    assert plan.slots == (0, None, None)


def test_the_last_layer_alone_still_captures_something() -> None:
    """Models return no list for no layers, so one input is captured and left out."""
    plan = plan_capture((7,), 8)
    assert plan.inputs == (0,)
    assert plan.slots == (None, None)
    assert len(command_line_ids(plan)) == 1


@given(st.sets(st.integers(-1, 15), min_size=1), st.randoms())
def test_any_layers_in_any_order(layers: set[int], random: object) -> None:
    """Slots are in ascending order of layers whatever the order given, and the command line's ids are valid."""
    shuffled = list(layers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    plan = plan_capture(shuffled, 16)
    assert plan == plan_capture(sorted(layers), 16)
    assert len(plan.slots) == len(layers) + 1
    assert list(plan.inputs) == sorted(set(plan.inputs))
    ids = command_line_ids(plan)
    assert len(ids) == len(plan.inputs) == len(set(ids))
    assert all(0 <= number < 16 for number in ids)


@pytest.mark.parametrize("layers", [(), (8,), (-2, 1), (1, 1), (0, 100)])
def test_layers_that_cannot_be_are_refused_with_the_range(layers: tuple[int, ...]) -> None:
    """Out of range, repeated, negative and no layers at all: the message has the valid range."""
    with pytest.raises(ValueError, match="from 0 to 7"):
        plan_capture(layers, 8)
