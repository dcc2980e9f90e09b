"""What ``prove`` gathers from an engine: dumps of prompts alone, in a batch, twice, and with shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from config.model_identity import model_folder
from config.native_exit import keep_native_data
from config.run import RunSettings
from eaglefeed.dump import read_dump
from eaglefeed.errors import ProofFailed
from eaglefeed.identity import RunIdentity
from eaglefeed.progress import Progress
from eaglefeed.records import Sample, batch_id
from workers.answered_dump import dump_folder
from workers.engine import Engine
from workers.parity import Distance, against_reference, distance, states_of
from workers.proof import FINAL_NORM_FILE, prove
from workers.reference import does_fit, is_mixture_of_experts, reference_states

_TEXT = (
    "A lighthouse keeper writes down the weather every evening: wind from the west, a clear sky, two ships to the "
    "north. In winter the sea is loud and the lamp burns for sixteen hours. He counts the oil, winds the clock and "
    "reads letters that come once in three weeks by boat. When fog comes in, he rings the bell by hand, once a minute. "
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen. Distances are None where nothing could be compared.

    Attributes:
        failures: ``reason: detail`` of each proof that failed.
        layers: one a captured layer, in the run's order.
    """

    identity: RunIdentity
    is_mixture: bool
    num_prompts: int
    num_tokens: int
    failures: tuple[str, ...] = ()
    cached_tokens_max: int = -1
    same_prompt_twice: float | None = None
    shared_prefix: float | None = None
    batch_vs_alone: float | None = None
    chunked_vs_whole: float | None = None
    chunked_skipped: str = ""
    layers: tuple[Distance, ...] = ()
    final_pre_norm: Distance | None = None
    final_post_norm: Distance | None = None
    reference_skipped: str = ""
    whole_states: dict[str, Any] = field(default_factory=dict)


def gather(
    settings: RunSettings,
    identity: RunIdentity,
    engine: Engine,
    num_samples: int,
    whole: Evidence | None = None,
    progress: Progress | None = None,
) -> Evidence:
    """Ask for the prompts in every way; with ``whole`` given, this is the chunked engine compared with it."""
    progress = progress or Progress("prove", quiet=True)
    asker = Asker(engine, identity, Path(settings.spool.path) / settings.name, progress)
    folder = model_folder(settings)
    prompts = prompts_of(folder, identity, num_samples)
    batch = asker.states(prompts)
    if whole is not None:
        return replace(
            whole,
            failures=(*whole.failures, *(f"chunked: {failure}" for failure in asker.failures)),
            cached_tokens_max=max(whole.cached_tokens_max, asker.cached_tokens_max),
            chunked_vs_whole=_apart(batch, whole.whole_states),
        )
    alone: dict[str, Any] = {}
    for prompt in prompts:
        alone |= asker.states([prompt])
    again = asker.states([prompts[-1]])
    evidence = Evidence(
        identity=identity,
        is_mixture=is_mixture_of_experts(folder),
        num_prompts=len(prompts),
        num_tokens=sum(prompt.num_tokens for prompt in prompts),
        failures=tuple(asker.failures),
        cached_tokens_max=asker.cached_tokens_max,
        batch_vs_alone=_apart(batch, alone),
        same_prompt_twice=_apart(again, alone),
        shared_prefix=_prefix_apart(prompts, alone),
        whole_states=alone,
    )
    progress.advance(0, step="asking transformers")
    return _against_transformers(settings, evidence, prompts, alone, asker.folder / FINAL_NORM_FILE)


class Asker:
    """Asks the engine, proves each dump, reads and removes it; failures are kept, not raised."""

    def __init__(self, engine: Engine, identity: RunIdentity, folder: Path, progress: Progress) -> None:
        self.folder = folder
        self.failures: list[str] = []
        self.cached_tokens_max = -1
        self._engine, self._identity, self._progress = engine, identity, progress

    def states(self, prompts: Sequence[Sample]) -> dict[str, Any]:
        """Sample id → float32 ``[T, S, H]``, for those whose dump can be read and has a row per token."""
        name, states = batch_id(prompt.id for prompt in prompts), {}
        for answer in self._engine.ask(name, prompts):
            path = self.folder / f"{answer.rid}.dump"
            self.cached_tokens_max = max(self.cached_tokens_max, answer.cached_tokens)
            try:
                path = dump_folder(answer.receipt, self.folder) / path.name
                prove(answer, self._identity, self.folder, name)
            except ProofFailed as error:
                self.failures.append(str(error))
            if path.exists():
                dump = read_dump(path)
                if dump.header.num_tokens == answer.sample.num_tokens:
                    states[answer.sample.id] = states_of(dump)
                path.unlink()
        self._progress.advance(len(prompts), step="asking the engine")
        return states


def prompts_of(folder: Path, identity: RunIdentity, count: int) -> list[Sample]:
    """Prompts of growing length, from one token up; the last three share a long prefix."""
    longest = min(identity.max_length, 512)
    lengths = [int(length) for length in np.geomspace(1, longest, max(2, count))]
    text = np.resize(prompts_text(folder, identity), longest + 8 * len(lengths)).astype(np.uint32)
    prompts = [text[:length].copy() for length in lengths]
    for number, tokens in enumerate(prompts[:-3]):
        tokens[:] = text[8 * number : 8 * number + len(tokens)]
    for number, tokens in enumerate(prompts[-2:]):
        tokens[-1] = (tokens[-1] + number + 1) % identity.vocab_size
    unique = {Sample(tokens, np.zeros(len(tokens), np.uint8)).id: tokens for tokens in prompts}
    return [Sample(tokens, np.zeros(len(tokens), np.uint8)) for tokens in unique.values()]


def prompts_text(folder: Path, identity: RunIdentity) -> Any:
    """Natural text where there is a tokenizer, else fixed random ids."""
    keep_native_data()
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder)(_TEXT)["input_ids"]
    except (OSError, ValueError):
        return np.random.default_rng(5).integers(0, identity.vocab_size, 256)


def _against_transformers(
    settings: RunSettings, evidence: Evidence, prompts: list[Sample], states: dict[str, Any], norm_file: Path
) -> Evidence:
    folder, identity = model_folder(settings), evidence.identity
    if not does_fit(folder, identity.dtype):
        return replace(evidence, reference_skipped="the model does not fit into this machine's memory a second time")
    compared = [prompt for prompt in prompts if prompt.id in states]
    if not compared:
        return replace(evidence, reference_skipped="no whole dump to compare")
    trusted = settings.model.trust_remote_code
    same = reference_states(folder, identity, compared, identity.dtype, trusted)
    exact = None
    if identity.dtype != "float32" and does_fit(folder, "float32"):
        exact = reference_states(folder, identity, compared, "float32", trusted)
    ours = [states[prompt.id] for prompt in compared]

    def slot(index: int) -> Distance:
        return against_reference(
            [state[:, index] for state in ours],
            [reference.slots[:, index] for reference in same],
            None if exact is None else [reference.slots[:, index] for reference in exact],
        )

    return replace(
        evidence,
        layers=tuple(slot(index) for index in range(len(identity.layer_ids))),
        final_pre_norm=slot(len(identity.layer_ids)),
        final_post_norm=against_reference(
            [_post_norm(state, identity, norm_file) for state in ours],
            [reference.post_norm for reference in same],
            None if exact is None else [reference.post_norm for reference in exact],
        ),
    )


def _post_norm(state: Any, identity: RunIdentity, norm_file: Path) -> Any:
    """The normed state as a reader of the run gets it: stored, or computed from what the run has stored."""
    import torch

    from eaglefeed.norm import parse_norm

    num_layers = len(identity.layer_ids)
    if "post_norm" in identity.final_states:
        return state[:, num_layers + identity.final_states.index("post_norm")]
    norm = parse_norm(norm_file.read_bytes(), str(norm_file))
    return norm.apply(state[:, num_layers].to(getattr(torch, identity.dtype))).float()


def _apart(first: dict[str, Any], second: dict[str, Any]) -> float | None:
    """The relative error between two takes of the same prompts, all slots together; 0.0 for identical bits."""
    both = [name for name in first if name in second]
    if not both:
        return None
    return distance(
        [first[name].flatten(1) for name in both], [second[name].flatten(1) for name in both]
    ).relative_error


def _prefix_apart(prompts: list[Sample], states: dict[str, Any]) -> float | None:
    """Causal: rows of a shared prefix do not depend on what follows, nor on which request came first."""
    pairs = []
    for first, second in zip(prompts[-3:], prompts[-2:], strict=False):
        if first.id in states and second.id in states:
            shared = min(first.num_tokens, second.num_tokens)
            different = np.flatnonzero(first.token_ids[:shared] != second.token_ids[:shared])
            length = int(different[0]) if len(different) else shared
            if length:
                pairs.append((states[first.id][:length].flatten(1), states[second.id][:length].flatten(1)))
    return distance([a for a, _ in pairs], [b for _, b in pairs]).row_error if pairs else None
