"""Real engines on checkpoints made by the tests, and what the tests ask of them."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from config.model_identity import run_identity
from config.run import RunSettings, parse_run
from eaglefeed.dump import PART_SUFFIX, SUFFIX, Dump, read_dump
from eaglefeed.errors import ProofFailed
from eaglefeed.identity import RunIdentity
from eaglefeed.records import Sample, batch_id
from tests.checkpoints import VOCABULARY, make_checkpoint
from workers.engine import Answer, Engine
from workers.engine_scratch import shared_memory_of, sweep
from workers.proof import prove
from workers.prove import running_engine
from workers.sglang_plugin.settings import FAULT_VARIABLE

LAYERS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Served:
    """A running engine and the run that it serves."""

    settings: RunSettings
    identity: RunIdentity
    engine: Engine

    @property
    def folder(self) -> Path:
        return Path(self.settings.spool.path) / self.settings.name

    def ask(self, samples: Sequence[Sample]) -> list[Answer]:
        """All in flight at once, as one batch."""
        return self.engine.ask(self.batch_id(samples), samples)

    def prove(self, answer: Answer, samples: Sequence[Sample]) -> Dump:
        """The proved dump, whose file is gone then (its map stays readable)."""
        path = prove(answer, self.identity, self.folder, self.batch_id(samples))
        dump = read_dump(path)
        path.unlink()
        return dump

    def refusals(self, samples: Sequence[Sample]) -> list[ProofFailed]:
        """What the workers' proof says of each sample that does not pass it."""
        refused = []
        for answer in self.ask(samples):
            try:
                self.prove(answer, samples)
            except ProofFailed as error:
                refused.append(error)
            finally:
                (self.folder / f"{answer.rid}.dump").unlink(missing_ok=True)
        return refused

    def leftovers(self) -> list[str]:
        """Dumps, whole or half, that lie in the run's folder (beside the norm and the workers' locks)."""
        return sorted(path.name for path in self.folder.iterdir() if path.suffix in (SUFFIX, PART_SUFFIX))

    @staticmethod
    def batch_id(samples: Sequence[Sample]) -> str:
        return batch_id(sample.id for sample in samples)


def tiny_settings(family: str, folder: Path, dtype: str = "bfloat16", **sections: Any) -> RunSettings:
    """A run of a tiny checkpoint, made in ``folder``."""
    path = make_checkpoint(family, folder / family, getattr(torch, dtype))
    record: dict[str, Any] = {"name": f"tiny-{family}", "model": {"path": str(path), "layers": LAYERS, "dtype": dtype}}
    record["model"] |= sections.pop("model", {})
    record |= {"spool": {"path": str(folder / "spool")}, **sections}
    return parse_run(record, f"the test's run of {family}")


@contextmanager
def served(settings: RunSettings, fault: str = "") -> Iterator[Served]:
    """Start the run's engine, with a fault put in on purpose where one is named.

    Requests that generate more than one token, as ours never do, are retracted every few forwards.
    """
    with ExitStack() as running:
        with pytest.MonkeyPatch.context() as patch:  # for this engine alone, not for what else a test starts beside it
            patch.setenv("SGLANG_TEST_RETRACT", "1")
            patch.delenv(FAULT_VARIABLE, raising=False)
            if fault:
                patch.setenv(FAULT_VARIABLE, fault)
            engine = running.enter_context(running_engine(settings))
        yield Served(settings, run_identity(settings), engine)


@dataclass(slots=True)
class Traces:
    """The temporary folder of engines that a test starts, and what they had in shared memory when it looked."""

    folder: Path
    others: set[Path]
    """Shared memory of the engines of other tests, which run on."""
    shared_memory: set[Path] = field(default_factory=set)

    def look(self, ancestor: int | None = None) -> None:
        """At all that a process (this one) has started."""
        assert len(list(self.folder.glob("eaglefeed-engine-*/*"))) > 4, "SGLang's files are somewhere else"
        self.shared_memory |= _shared_memory_below(ancestor) - self.others
        assert self.shared_memory

    @property
    def left(self) -> list[str]:
        """What is still there, beside the user's cache of compiled kernels."""
        in_folder = {path for path in self.folder.iterdir() if path.name != getpass.getuser()}
        return sorted(map(str, in_folder | {path for path in self.shared_memory if path.exists()}))


def _shared_memory_below(ancestor: int | None = None) -> set[Path]:
    return shared_memory_of(part.pid for part in psutil.Process(ancestor).children(recursive=True))


@contextmanager
def leaves_nothing() -> Iterator[Traces]:
    """Engines started inside leave nothing in the temporary folder and in shared memory."""
    usual = tempfile.gettempdir()
    cache_dir()  # of this process's own PyTorch, which remembers it
    with tempfile.TemporaryDirectory(prefix="ef-", dir="/tmp") as folder:
        traces, tempfile.tempdir = Traces(Path(folder), _shared_memory_below()), folder
        try:
            yield traces
        finally:
            tempfile.tempdir = usual
        sweep(traces.folder)  # a killed supervisor's, as the next start does it
        if traces.left:
            pytest.fail(f"left behind: {traces.left}")


def prompts(lengths: Sequence[int], seed: int = 1, vocabulary: int = VOCABULARY) -> list[Sample]:
    """Random prompts of these lengths."""
    random = np.random.default_rng(seed)
    return [
        Sample(random.integers(4, vocabulary, length, dtype=np.uint32), np.zeros(length, np.uint8))
        for length in lengths
    ]


def with_prefix(prefix: Sample, tails: Sequence[Sample]) -> list[Sample]:
    """Prompts that begin alike, as conversations with one system prompt do."""
    joined = [np.concatenate([prefix.token_ids, tail.token_ids]) for tail in tails]
    return [Sample(tokens, np.zeros(len(tokens), np.uint8)) for tokens in joined]
