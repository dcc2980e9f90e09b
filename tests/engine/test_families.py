"""``prove`` passes for each model family, on real SGLang against transformers (issue 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eaglefeed.norm import TOLERANCE_ULPS, parse_norm
from tests.engine import norm_spy
from tests.engine.engines import Served, prompts, served, tiny_settings
from workers.evidence import gather
from workers.parity import states_of
from workers.proof import FINAL_NORM_FILE
from workers.verdict import judge, table

CASES = {
    "llama-float32": ("llama", "float32", (1, 3, 4)),
    # This one and Gemma store the state after the norm too.
    "qwen3": ("qwen3", "bfloat16", (1, 3, 4)),
    # In any order, with the embedding output and the last layer.
    "qwen3-moe-any-layers": ("qwen3_moe", "bfloat16", (7, -1, 0, 5)),
    # Sliding windows of 32 tokens, and a model file that calls its norm itself.
    "gemma3": ("gemma3", "bfloat16", (-1, 3, 6)),
    # The first id is not 1: SGLang's own rule would shift these by one.
    "deepseek-v3": ("deepseek_v3", "bfloat16", (2, 4, 5)),
    # The default of an eight-layer model, as the seed names layers for Kimi-K2.5.
    "kimi-k25": ("kimi_k25", "bfloat16", (1, 3, 4)),
    # Vision-language models fed with text alone, each with a list of its own through the same path.
    "qwen25-vl": ("qwen25_vl", "bfloat16", (0, 2, 5, 7)),
    "qwen3-vl": ("qwen3_vl", "bfloat16", (1, 3, 4)),
}
STORING_POST_NORM = ("qwen3", "gemma3")


@pytest.mark.parametrize("case", CASES)
def test_prove_passes(case: str, tmp_path: Path) -> None:
    """Whole, uncached, the same alone and in a batch, and every layer where transformers has it.

    Where the state after the norm is stored, it is what transformers has and, bit for bit, what the engine computed.
    """
    family, dtype, layers = CASES[case]
    engine_settings: dict[str, Any] = {}
    if case in STORING_POST_NORM:
        engine_settings = {"store_post_norm": True, "extra_args": norm_spy.engine_arguments(tmp_path)}
    with served(tiny_settings(family, tmp_path, dtype, model={"layers": layers}, engine=engine_settings)) as engine:
        result = judge(gather(engine.settings, engine.identity, engine.engine, 8))
        print(table(result))
        assert result["verdict"] == "pass", result["breaches"]
        assert result["rows_equal_tokens"] is True
        assert result["cached_tokens_max"] == 0
        assert [entry["layer"] for entry in result["layers"]] == sorted(layers)
        assert result["final_pre_norm"]["relative_error"] < 0.05
        assert result["final_post_norm"]["relative_error"] < 0.05
        if case in STORING_POST_NORM:
            check_post_norm(engine, tmp_path)
        assert engine.leftovers() == []
        if dtype == "float32":
            assert max(entry["relative_error"] for entry in result["layers"]) < 1e-5


def check_post_norm(engine: Served, spied: Path) -> None:
    """What is stored is the norm's own output, the lm_head's own input, and nearly the run's norm of the other slot."""
    norm = parse_norm((engine.folder / FINAL_NORM_FILE).read_bytes(), "the run's norm")
    norm_spy.take_seen(spied)
    apart = []
    for sample in prompts([1, 2, 63, 300, 511], seed=31):
        (answer,) = engine.ask([sample])
        dump = engine.prove(answer, [sample])
        (seen,) = norm_spy.take_seen(spied)
        before, after = states_of(dump)[:, -2:].to(torch.bfloat16).unbind(1)
        assert dump.header.num_slots == len(engine.identity.layer_ids) + 2
        assert torch.equal(after, seen["after_norm"])
        assert torch.equal(after[-1:], seen["through_head"])
        # The engine normalizes the residual before it is rounded to be stored, and may round once more in between.
        steps = after.view(torch.int16).int() - norm.apply(before).view(torch.int16).int()
        apart.append(int(steps.abs().max()))
    print(f"stored against the run's norm of the stored state before it: at most {max(apart)} units in the last place")
    assert max(apart) <= TOLERANCE_ULPS
