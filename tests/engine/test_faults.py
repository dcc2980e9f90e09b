"""The mutation test: each fault that peers have shipped, put into a real engine, is caught by name (issue 3)."""

from __future__ import annotations

import pytest

from eaglefeed.errors import EngineGone
from tests.engine.conftest import FaultSwitch
from tests.engine.engines import Served, prompts, with_prefix
from workers.evidence import gather
from workers.sglang_plugin import faults
from workers.startup_proof import SKIP_VARIABLE, prove_engine
from workers.verdict import judge

# Equal lengths, so that swapped rows are not told by their number; one longer than two chunks.
PROMPTS = prompts([48, 48, 48, 150])

EXPECTED = {
    "stock-chunking": "short-dump",
    "layers-shifted": "layers",
    "rows-swapped": "token-ids",
    "last-row-dropped": "short-dump",
    "row-duplicated": "token-ids",
    "states-duplicated": "repeated-row",
    "states-zeroed": "all-zero",
    "one-nan": "not-finite",
    "final-norm-applied": "final-norm-applied",
    "token-ids-altered": "token-ids",
}

ALSO_BY_PARITY = {"layers-shifted": "parity: layer 1", "final-norm-applied": "parity: final state before the norm"}
"""Faults that ``prove`` would find even if the workers' proof did not exist."""


def test_without_a_fault_all_passes(faulty_engine: Served) -> None:
    """The engine that the faults are put into is proved whole before: what is caught is the fault."""
    assert faulty_engine.refusals(PROMPTS) == []
    result = judge(gather(faulty_engine.settings, faulty_engine.identity, faulty_engine.engine, 6))
    assert result["verdict"] == "pass", result["breaches"]


@pytest.mark.parametrize("fault", EXPECTED)
def test_the_workers_proof_catches(faulty_engine: Served, switch: FaultSwitch, fault: str) -> None:
    """No dump that this fault has touched is accepted, and the reason names what is wrong."""
    switch.set(fault)
    refused = faulty_engine.refusals(PROMPTS)
    assert {error.reason for error in refused} == {EXPECTED[fault]}
    untouched = {"stock-chunking": 3, "rows-swapped": 2}.get(fault, 0)
    assert len(refused) >= len(PROMPTS) - untouched
    assert faulty_engine.leftovers() == []


@pytest.mark.parametrize("fault", EXPECTED)
def test_prove_catches(faulty_engine: Served, switch: FaultSwitch, fault: str) -> None:
    """``eaglefeed prove`` fails with a breach of this name."""
    switch.set(fault)
    result = judge(gather(faulty_engine.settings, faulty_engine.identity, faulty_engine.engine, 6))
    assert result["verdict"] == "fail"
    assert any(breach.startswith(f"{EXPECTED[fault]}:") for breach in result["breaches"]), result["breaches"]
    if fault in ALSO_BY_PARITY:
        assert any(breach.startswith(ALSO_BY_PARITY[fault]) for breach in result["breaches"]), result["breaches"]


def test_a_short_dump_of_stock_chunking_names_both_lengths(faulty_engine: Served, switch: FaultSwitch) -> None:
    """150 tokens in chunks of 64: SGLang's own way keeps the last 22 rows, and the refusal says so."""
    switch.set("stock-chunking")
    (error,) = faulty_engine.refusals(PROMPTS[3:])
    assert (error.reason, error.detail) == ("short-dump", "22 rows for 150 tokens")


def test_the_radix_cache_is_caught(radix_engine: Served) -> None:
    """With the prefix cache on, a prompt sent twice and prompts that share a prefix come back short, and are named."""
    prefix, *tails = prompts([100, 20, 30, 40], seed=2)
    conversations = with_prefix(prefix, tails)
    assert radix_engine.refusals(conversations[:1]) == []  # nothing is cached yet
    refused = radix_engine.refusals(conversations)
    assert [error.reason for error in refused] == ["short-dump"] * 3
    assert [error.detail for error in refused] == [
        "1 rows for 120 tokens",
        "30 rows for 130 tokens",
        "40 rows for 140 tokens",
    ]
    result = judge(gather(radix_engine.settings, radix_engine.identity, radix_engine.engine, 4))
    assert result["verdict"] == "fail"
    assert result["cached_tokens_max"] > 0


def test_the_startup_proof_refuses_a_prefix_cache(radix_engine: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker does not work with such an engine, and says why; told to skip the proof it says so loudly."""
    with pytest.raises(EngineGone, match="did not pass its proof: the same prompt again came back wrong"):
        prove_engine(radix_engine.engine, radix_engine.identity, radix_engine.folder.parent)
    assert radix_engine.leftovers() == []
    monkeypatch.setenv(SKIP_VARIABLE, "1")
    prove_engine(radix_engine.engine, radix_engine.identity, radix_engine.folder.parent)


def test_every_fault_is_tested() -> None:
    """A fault that the plugin can put in is one that a test here shows caught (``poison`` is the queue's)."""
    assert set(EXPECTED) | {"radix-cache", "poison"} == set(faults.NAMES)
