"""``prove`` passes for each model family, on real SGLang against transformers (issue 3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.engines import served, tiny_settings
from workers.evidence import gather
from workers.verdict import judge, table

CASES = {
    "llama-float32": ("llama", "float32", (1, 3, 4)),
    "qwen3": ("qwen3", "bfloat16", (1, 3, 4)),
    # In any order, with the embedding output and the last layer.
    "qwen3-moe-any-layers": ("qwen3_moe", "bfloat16", (7, -1, 0, 5)),
    # Sliding windows of 32 tokens, and a model file that calls its norm itself.
    "gemma3": ("gemma3", "bfloat16", (-1, 3, 6)),
    # The first id is not 1: SGLang's own rule would shift these by one.
    "deepseek-v3": ("deepseek_v3", "bfloat16", (2, 4, 5)),
    # The default of an eight-layer model, as the seed names layers for Kimi-K2.5.
    "kimi-k25": ("kimi_k25", "bfloat16", (1, 3, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_prove_passes(case: str, tmp_path: Path) -> None:
    """Whole, uncached, the same alone and in a batch, and every layer where transformers has it."""
    family, dtype, layers = CASES[case]
    with served(tiny_settings(family, tmp_path, dtype, model={"layers": layers})) as engine:
        result = judge(gather(engine.settings, engine.identity, engine.engine, 8))
        print(table(result))
        assert result["verdict"] == "pass", result["breaches"]
        assert result["rows_equal_tokens"] is True
        assert result["cached_tokens_max"] == 0
        assert [entry["layer"] for entry in result["layers"]] == sorted(layers)
        assert result["final_pre_norm"]["relative_error"] < 0.05
        assert result["final_post_norm"]["relative_error"] < 0.05
        assert engine.leftovers() == []
        if dtype == "float32":
            assert max(entry["relative_error"] for entry in result["layers"]) < 1e-5
