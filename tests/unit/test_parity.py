"""What counts as agreement with transformers, and what a massive first row must not hide."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.runs import make_identity
from workers.evidence import Evidence
from workers.parity import Distance, against_reference, distance
from workers.verdict import judge, table

GOOD = Distance(0.004, 0.005, 0.9999, 0.004, 0.005)


def evidence(**changes: object) -> Evidence:
    whole = Evidence(
        make_identity(),
        is_mixture=False,
        num_prompts=3,
        num_tokens=100,
        cached_tokens_max=0,
        same_prompt_twice=0.0,
        shared_prefix=0.0,
        batch_vs_alone=0.0,
        chunked_vs_whole=0.004,
        layers=(GOOD, GOOD, GOOD),
        final_pre_norm=GOOD,
        final_post_norm=GOOD,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_equal_states_are_at_distance_zero() -> None:
    """The same bits give exactly 0, by which equal bits are told."""
    states = torch.randn(5, 8)
    assert distance([states], [states.clone()]).relative_error == 0
    assert distance([states], [states.clone()]).row_error == 0


def test_a_massive_first_row_hides_nothing() -> None:
    """All rows but the first are wrong: the plain norm hardly sees it, the row-wise error does, and it is refused."""
    right = torch.randn(50, 64)
    right[0] *= 10_000
    wrong = torch.cat([right[:1], torch.randn(49, 64)])
    found = distance([wrong], [right])
    assert found.relative_error < 0.002
    assert found.row_error > 1
    assert not found.is_within(0.01)


def test_beyond_the_limit_it_is_float32_that_judges() -> None:
    """An engine nearer to float32 than transformers in bfloat16 passes; one farther does not."""
    exact = torch.randn(200, 64)
    near, far = exact + 0.02 * torch.randn(200, 64), exact + 0.06 * torch.randn(200, 64)
    assert against_reference([near], [far], [exact]).is_within(0.01)
    assert not against_reference([far], [near], [exact]).is_within(0.01)
    assert not against_reference([near], [far], None).is_within(0.01)


def test_a_clean_engine_passes() -> None:
    """No breach, verdict pass, and the keys that scripts read."""
    result = judge(evidence())
    assert result["verdict"] == "pass"
    wanted = "rows_equal_tokens cached_tokens_max batch_vs_alone chunked_vs_whole layers final_pre_norm final_post_norm"
    assert set(wanted.split()) <= set(result)
    assert {"layer", "relative_error", "worst_row_cosine"} <= set(result["layers"][0])
    assert "verdict: pass" in table(result)


def test_each_breach_is_named() -> None:
    """Whatever is wrong is in the list of breaches and in the table, and the verdict is fail."""
    shifted = Distance(0.4, 0.4, 0.6, 0.4, 0.005)
    for changes, name in (
        ({"failures": ("short-dump: 1 rows for 9 tokens",)}, "short-dump"),
        ({"cached_tokens_max": 9}, "cached-tokens"),
        ({"batch_vs_alone": 0.3}, "batch-vs-alone"),
        ({"chunked_vs_whole": 0.3}, "chunked-vs-whole"),
        ({"shared_prefix": 0.3}, "shared-prefix"),
        ({"layers": (GOOD, shifted, GOOD)}, "parity: layer 5"),
        ({"final_pre_norm": shifted}, "parity: final state before the norm"),
        ({"final_post_norm": shifted}, "parity: final state after the norm"),
    ):
        result = judge(evidence(**changes))
        assert result["verdict"] == "fail", name
        assert result["breaches"][0].startswith(name)
        assert f"BREACH {name}" in table(result)
