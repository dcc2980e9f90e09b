"""Collators: padding, packing and who shifts, with values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eaglefeed.collate import PackedCollator, PaddedCollator
from eaglefeed.errors import UsageError


def make(first: int, length: int, final_state: str) -> dict[str, Any]:
    """Token ids ``first, first+1, …``; aux and final hold the token's own number, so a shift shows."""
    ids = torch.arange(first, first + length)
    return {
        "sample_id": "0" * 32,
        "token_ids": ids,
        "loss_mask": torch.ones(length, dtype=torch.int64),
        "aux": ids[:, None].repeat(1, 6).to(torch.bfloat16),
        "final": ids[:, None].repeat(1, 2).to(torch.bfloat16),
        "final_state": final_state,
    }


def test_padded() -> None:
    """Rows are padded with zeros on the right; nothing is shifted; the last real position is not supervised."""
    batch = PaddedCollator()([make(10, 3, "post_norm"), make(20, 2, "post_norm")])
    assert batch["input_ids"].tolist() == [[10, 11, 12], [20, 21, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["loss_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert batch["hidden_state"][..., 0].tolist() == batch["target"][..., 0].tolist() == [[10, 11, 12], [20, 21, 0]]
    assert batch["hidden_state"].dtype == torch.bfloat16


def test_padded_cuts_and_rounds_up() -> None:
    """``max_length`` cuts the end, whose last kept position is unsupervised; ``multiple`` rounds the width up."""
    batch = PaddedCollator(max_length=2, multiple=4)([make(10, 3, "post_norm")])
    assert batch["input_ids"].tolist() == [[10, 11, 0, 0]]
    assert batch["loss_mask"].tolist() == [[1, 0, 0, 0]]


def test_packed() -> None:
    """Token t+1, its mask and its final state stand beside the captured layers of token t; T tokens give T-1."""
    batch = PackedCollator(6)([make(10, 3, "pre_norm"), make(20, 4, "pre_norm")])
    assert batch["input_ids"].tolist() == [[11, 12, 21, 22, 23, 0]]
    assert batch["hidden_states"][0, :, 0].tolist() == [10, 11, 20, 21, 22, 0]
    assert batch["verifier_last_hidden_states"][0, :, 0].tolist() == [11, 12, 21, 22, 23, 0]
    assert batch["loss_mask"].tolist() == [[1, 1, 1, 1, 1, 0]]
    assert batch["position_ids"].tolist() == [[1, 2, 1, 2, 3, 0]]
    assert batch["document_ids"].tolist() == [[0, 0, 1, 1, 1, -1]]


def test_the_wrong_side_of_the_norm_is_refused() -> None:
    """Each collator names the final state it takes and how to get it; nothing is trained on the other."""
    with pytest.raises(UsageError, match='final="post_norm"'):
        PaddedCollator()([make(1, 3, "pre_norm")])
    with pytest.raises(UsageError, match='final="pre_norm"'):
        PackedCollator(9)([make(1, 3, "post_norm")])


def test_too_much_for_a_pack_is_refused() -> None:
    """What does not fit is refused rather than cut."""
    with pytest.raises(UsageError, match="5 tokens do not fit in a pack of 4"):
        PackedCollator(4)([make(1, 6, "pre_norm")])
