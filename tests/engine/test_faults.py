"""The mutation test: each fault that peers have shipped, put into a real engine, is caught by name (issue 3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engines import Served, prompts, served, tiny_settings, with_prefix
from workers.evidence import gather
from workers.sglang_plugin import faults
from workers.verdict import judge

CHUNK_TOKENS = 64
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


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fault") / "fault"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, fault_file: Path) -> Iterator[Served]:
    """One engine whose fault is what the file says at the moment; it joins chunks of 64 tokens."""
    engine_settings = {"chunked_prefill_tokens": CHUNK_TOKENS, "max_prefill_tokens": 512}
    settings = tiny_settings("llama", tmp_path_factory.mktemp("faults"), engine=engine_settings)
    with served(settings, f"@{fault_file}") as running:
        yield running


@pytest.fixture
def fault(fault_file: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    fault_file.write_text(request.param)
    yield request.param
    fault_file.write_text("")


def test_without_a_fault_all_passes(engine: Served) -> None:
    """The engine that the faults are put into is proved whole before: what is caught is the fault."""
    assert engine.refusals(PROMPTS) == []
    result = judge(gather(engine.settings, engine.identity, engine.engine, 6))
    assert result["verdict"] == "pass", result["breaches"]


@pytest.mark.parametrize("fault", EXPECTED, indirect=True)
def test_the_workers_proof_catches(engine: Served, fault: str) -> None:
    """No dump that this fault has touched is accepted, and the reason names what is wrong."""
    refused = engine.refusals(PROMPTS)
    assert {error.reason for error in refused} == {EXPECTED[fault]}
    untouched = {"stock-chunking": 3, "rows-swapped": 2}.get(fault, 0)
    assert len(refused) >= len(PROMPTS) - untouched
    assert engine.leftovers() == []


@pytest.mark.parametrize("fault", EXPECTED, indirect=True)
def test_prove_catches(engine: Served, fault: str) -> None:
    """``eaglefeed prove`` fails with a breach of this name."""
    result = judge(gather(engine.settings, engine.identity, engine.engine, 6))
    assert result["verdict"] == "fail"
    assert any(breach.startswith(f"{EXPECTED[fault]}:") for breach in result["breaches"]), result["breaches"]
    if fault in ALSO_BY_PARITY:
        assert any(breach.startswith(ALSO_BY_PARITY[fault]) for breach in result["breaches"]), result["breaches"]


def test_a_short_dump_of_stock_chunking_names_both_lengths(engine: Served, fault_file: Path) -> None:
    """150 tokens in chunks of 64: SGLang's own way keeps the last 22 rows, and the refusal says so."""
    fault_file.write_text("stock-chunking")
    (error,) = engine.refusals(PROMPTS[3:])
    fault_file.write_text("")
    assert (error.reason, error.detail) == ("short-dump", "22 rows for 150 tokens")


def test_the_radix_cache_is_caught(tmp_path: Path) -> None:
    """With the prefix cache on, a prompt sent twice and prompts that share a prefix come back short, and are named."""
    with served(tiny_settings("llama", tmp_path), "radix-cache") as engine:
        prefix, *tails = prompts([100, 20, 30, 40], seed=2)
        conversations = with_prefix(prefix, tails)
        assert engine.refusals(conversations[:1]) == []  # nothing is cached yet
        refused = engine.refusals(conversations)
        assert [error.reason for error in refused] == ["short-dump"] * 3
        assert [error.detail for error in refused] == [
            "1 rows for 120 tokens",
            "30 rows for 130 tokens",
            "40 rows for 140 tokens",
        ]
        result = judge(gather(engine.settings, engine.identity, engine.engine, 4))
        assert result["verdict"] == "fail"
        assert result["cached_tokens_max"] > 0


def test_every_fault_is_tested() -> None:
    """A fault that the plugin can put in is one that a test here shows caught (``poison`` is the queue's)."""
    assert set(EXPECTED) | {"radix-cache", "poison"} == set(faults.NAMES)
