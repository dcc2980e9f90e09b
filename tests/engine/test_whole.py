"""Whatever the engine is asked, and in whatever company, every dump is whole (issue 3)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from eaglefeed.dump import Dump
from eaglefeed.records import Sample
from tests.engine.engines import Served, prompts, served, tiny_settings
from workers.engine import Answer
from workers.parity import distance, states_of
from workers.startup_proof import prove_engine

LONGEST = 4000
MAX_PREFILL_TOKENS = 1024
TOLERANCE = 0.02
"""Row error between two takes of a prompt in different company, where bits are not equal (bfloat16)."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One pass a prompt, and prompts four times longer than a forward is meant to be."""
    settings = tiny_settings(
        "llama",
        tmp_path_factory.mktemp("whole"),
        data={"max_length": LONGEST},
        engine={"max_prefill_tokens": MAX_PREFILL_TOKENS, "max_total_tokens": 16_384},
    )
    with served(settings) as running:
        yield running


def test_the_engine_passes_the_startup_proof(engine: Served) -> None:
    """One prompt twice and two with a shared prefix come back whole, with nothing cached, and leave no file."""
    prove_engine(engine.engine, engine.identity, engine.folder.parent)
    assert engine.leftovers() == []


def test_three_bursts_of_a_hundred_prompts(engine: Served) -> None:
    """1 to 4,000 tokens in random order, three times: each dump whole, and the same each time within the tolerance."""
    random = np.random.default_rng(17)
    lengths = [1, 1, 2, LONGEST, LONGEST, MAX_PREFILL_TOKENS, MAX_PREFILL_TOKENS + 1]
    lengths += [int(length) for length in np.geomspace(1, LONGEST, 93)]
    burst = prompts(lengths, seed=3)
    first: dict[str, Dump] = {}
    num_equal = num_compared = 0
    for _ in range(3):
        order = random.permutation(len(burst))
        samples = [burst[index] for index in order]
        for answer in engine.ask(samples):
            dump = engine.prove(answer, samples)
            before = first.setdefault(answer.sample.id, dump)
            if before is dump:
                continue
            num_compared += 1
            if np.array_equal(before.states, dump.states):
                num_equal += 1
            else:
                apart = distance([states_of(before).flatten(1)], [states_of(dump).flatten(1)])
                assert apart.row_error < TOLERANCE, f"{answer.sample.num_tokens} tokens: {apart}"
    assert num_compared == 3 * len(burst) - len(first)
    print(f"{num_equal} of {num_compared} repeated dumps have equal bits")
    assert engine.leftovers() == []


def test_a_spool_that_cannot_be_written_fails_the_request_alone(engine: Served) -> None:
    """The answer carries the reason, the engine lives on, and the next request finds the spool again."""
    samples = prompts([20], seed=5)
    norm = (engine.folder / "final_norm.safetensors").read_bytes()
    shutil.rmtree(engine.folder)
    (answer,) = engine.ask(samples)
    assert answer.receipt["error"] == "spool-disk"
    assert "No such file" in answer.receipt["detail"]
    engine.folder.mkdir()
    (engine.folder / "final_norm.safetensors").write_bytes(norm)
    assert engine.refusals(samples) == []


@pytest.mark.parametrize("kind", ["whole", "in chunks"])
def test_an_aborted_request_leaves_no_file(engine: Served, faulty_engine: Served, kind: str) -> None:
    """Aborted in the middle of a burst, or of its chunks: answered as aborted, and nothing of it is in the spool."""
    running = engine if kind == "whole" else faulty_engine
    samples = prompts([3900] * 12, seed=6)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(running.ask, samples)
        time.sleep(0.5)
        httpx.post(f"{running.engine.urls[0]}/abort_request", json={"rid": "", "abort_all": True}, timeout=60)
        answers = asking.result(timeout=120)
    aborted = [answer for answer in answers if answer.error]
    assert aborted, "the engine was done before the abort came; make the burst longer"
    for answer in answers:
        if not answer.error:
            running.prove(answer, samples)
    assert running.refusals(prompts([30, 40], seed=7)) == []
    assert running.leftovers() == []


@pytest.mark.parametrize("kind", ["whole", "in chunks"])
def test_a_retracted_request_is_whole_and_leaves_nothing(engine: Served, faulty_engine: Served, kind: str) -> None:
    """Its second take is the same as that of a request which was let be; no file and no buffer is left of the first."""
    running = engine if kind == "whole" else faulty_engine
    samples = prompts([300, 200, 150, 64, 30, 1], seed=9)
    before = {answer.sample.id: running.prove(answer, samples) for answer in running.ask(samples)}
    with ThreadPoolExecutor(len(samples)) as pool:
        answers = list(pool.map(lambda sample: generate(running, samples, sample, 24), samples))
    retractions = [meta["num_retractions"] for _, meta in answers]
    print(f"retracted: {retractions}")
    assert any(retractions), "each request ran alone; ask for more tokens"
    for answer, _ in answers:
        dump, wanted = running.prove(answer, samples), before[answer.sample.id]
        apart = distance([states_of(wanted).flatten(1)], [states_of(dump).flatten(1)])
        assert apart.row_error < TOLERANCE, f"{answer.sample.num_tokens} tokens: {apart}"
    (last,) = running.ask(prompts([40], seed=10))
    assert last.receipt["buffer_bytes"] == 0
    (running.folder / last.receipt["file"]).unlink()
    assert running.leftovers() == []


def generate(running: Served, samples: list[Sample], sample: Sample, num_tokens: int) -> tuple[Answer, dict[str, Any]]:
    """Ask for a sample's dump and for more tokens than the workers do."""
    rid = f"{running.batch_id(samples)}-{sample.id}-0badcafe"
    question = {
        "rid": rid,
        "input_ids": sample.token_ids.tolist(),
        "sampling_params": {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True},
        "return_hidden_states": True,
    }
    meta = httpx.post(f"{running.engine.urls[0]}/generate", json=question, timeout=120).json()["meta_info"]
    return Answer(sample, rid, meta["cached_tokens"], meta["eaglefeed"][0]), meta


def test_a_foreign_request_makes_no_dump(engine: Served) -> None:
    """A request that is not named as a sample is served by SGLang alone, its states in its own answer."""
    question = {
        "rid": "somebody-else",
        "input_ids": [5, 6, 7, 8],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_hidden_states": True,
    }
    meta = httpx.post(f"{engine.engine.urls[0]}/generate", json=question, timeout=60).json()["meta_info"]
    assert "eaglefeed" not in meta
    assert len(meta["hidden_states"][0]) == 4
    assert engine.leftovers() == []
