"""Before its first job a worker proves the engine, by the procedure that uncovered the radix-cache fault."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from eaglefeed.errors import EngineGone, ProofFailed
from eaglefeed.identity import RunIdentity
from eaglefeed.records import Sample, batch_id
from workers.answered_dump import remove_dump
from workers.engine import Answer, Engine
from workers.proof import prove

log = logging.getLogger(__name__)

SKIP_VARIABLE = "EAGLEFEED_SKIP_STARTUP_PROOF"
_PREFIX_TOKENS = 48
_TAIL_TOKENS = 16


def prove_engine(engine: Engine, identity: RunIdentity, spool: Path) -> None:
    """Ask for one prompt twice and for two prompts with a shared prefix; all must come back whole, nothing cached.

    Args:
        spool: the spool's folder; dumps lie in ``<spool>/<run>`` and are removed.

    Raises:
        EngineGone: the engine is not to be worked with, with the reason.
    """
    if os.environ.get(SKIP_VARIABLE):
        log.critical("%s is set: THE ENGINE IS NOT PROVED; this is for tests alone", SKIP_VARIABLE)
        return
    folder = spool / identity.run
    for url in engine.urls:
        _prove_one(Engine([url], engine.timeout_seconds), identity, folder)


def _prove_one(engine: Engine, identity: RunIdentity, folder: Path) -> None:
    prompts = proof_prompts(identity.vocab_size, min(identity.max_length, _PREFIX_TOKENS + _TAIL_TOKENS))
    for what, samples in (
        ("a prompt", [prompts[0]]),
        ("the same prompt again", [prompts[0]]),
        ("two prompts that share a prefix", prompts[1:]),
    ):
        name = batch_id(sample.id for sample in samples)
        for answer in engine.ask(name, samples):
            _prove_answer(what, answer, identity, folder, name)


def _prove_answer(what: str, answer: Answer, identity: RunIdentity, folder: Path, name: str) -> None:
    try:
        prove(answer, identity, folder, name)
    except ProofFailed as error:
        raise EngineGone(
            f"the engine did not pass its proof: {what} came back wrong ({error}). Start it with `eaglefeed engine`; "
            "a prefix cache or a foreign server answers like this."
        ) from error
    finally:
        remove_dump(answer, folder)


def proof_prompts(vocab_size: int, num_tokens: int) -> list[Sample]:
    """Three prompts of ``num_tokens`` tokens; all share a prefix of three quarters."""
    random = np.random.default_rng(20_240_229)
    shared = random.integers(0, vocab_size, num_tokens, dtype=np.uint32)
    prompts = []
    for _ in range(3):
        tokens = shared.copy()
        tail = max(1, num_tokens // 4)
        tokens[-tail:] = random.integers(0, vocab_size, tail, dtype=np.uint32)
        prompts.append(Sample(tokens, np.zeros(num_tokens, np.uint8)))
    return prompts
