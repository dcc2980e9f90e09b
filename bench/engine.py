"""Extraction against the same engine's plain prefill and against SGLang's own return of hidden states, in one run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from bench.engine_figures import Figures, as_json, table
from config.model_identity import run_identity
from config.run import RunSettings, load_run
from eaglefeed.identity import RunIdentity
from eaglefeed.progress import Progress
from eaglefeed.records import Sample, batch_id
from workers.engine import Engine
from workers.evidence import prompts_text
from workers.proof import prove
from workers.prove import running_engine

EXAMPLE = """example:
  eaglefeed bench engine --run config/smollm2.toml --json"""

MIN_TOKENS, MAX_TOKENS = 256, 1024
STOCK_PROMPTS = 4
"""So many prompts go through SGLang's own return: it is the slow one, and its rate does not depend on their number."""

_SAMPLE_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", default="config/smollm2.toml", metavar="RUN.toml")
    parser.add_argument("--prompts", type=int, default=64, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each kind, in turn; medians are printed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")


def main(parsed: argparse.Namespace) -> int:
    figures = measure(load_run(parsed.run), parsed.prompts, parsed.rounds, parsed.quiet)
    print(json.dumps(as_json(figures)) if parsed.json else table(figures))
    return 0


def measure(settings: RunSettings, num_prompts: int, rounds: int, quiet: bool) -> Figures:
    """Start one engine and ask it for the same prompts in three ways, taking turns so that drift hits all alike."""
    identity = run_identity(settings)
    prompts = make_prompts(settings, identity, num_prompts)
    with tempfile.TemporaryDirectory(prefix="eaglefeed-bench-") as folder:
        spool = settings.spool.model_copy(update={"path": folder})
        settings = settings.model_copy(update={"spool": spool})
        with running_engine(settings) as engine, Progress("bench engine", 4 * rounds, "passes", quiet) as progress:
            return _measure(settings, identity, engine, prompts, rounds, progress)


def make_prompts(settings: RunSettings, identity: RunIdentity, count: int) -> list[Sample]:
    """Natural text of 256 to 1,024 tokens, no two beginnings alike."""
    from config.model_identity import model_folder

    text = np.asarray(prompts_text(model_folder(settings), identity), np.uint32)
    random = np.random.default_rng(11)
    prompts = []
    for length in random.integers(MIN_TOKENS, MAX_TOKENS + 1, count):
        tokens = np.resize(np.roll(text, -int(random.integers(len(text)))), int(length))
        tokens[0] = random.integers(identity.vocab_size)
        prompts.append(Sample(tokens, np.zeros(len(tokens), np.uint8)))
    return prompts


def _measure(
    settings: RunSettings,
    identity: RunIdentity,
    engine: Engine,
    prompts: list[Sample],
    rounds: int,
    progress: Progress,
) -> Figures:
    tokens, few = sum(prompt.num_tokens for prompt in prompts), prompts[:: max(1, len(prompts) // STOCK_PROMPTS)]
    folder, name = Path(settings.spool.path) / settings.name, batch_id(prompt.id for prompt in prompts)
    asyncio.run(_generate(engine.urls[0], prompts, False))  # the first pass pays for memory and kernels
    answers: list[Any] = []

    def extract() -> None:
        answers[:] = engine.ask(name, prompts)

    def prove_all() -> None:
        for answer in answers:
            prove(answer, identity, folder, name).unlink()

    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "plain": (tokens, lambda: asyncio.run(_generate(engine.urls[0], prompts, False))),
        "extract": (tokens, extract),
        "prove": (tokens, prove_all),
        "stock": (sum(map(_length, few)), lambda: asyncio.run(_generate(engine.urls[0], few, True))),
    }
    passes: dict[str, list[Pass]] = {name: [] for name in ways}
    for number in range(rounds):
        for way, (count, work) in ways.items():
            passes[way].append(_timed(count, work))
        rates = {way: f"{found[-1].tokens_s:,.0f}/s" for way, found in passes.items()}
        progress.update(4 * (number + 1), **rates)
    proved = [tokens / (a.seconds + b.seconds) for a, b in zip(passes["extract"], passes["prove"], strict=True)]
    return Figures(
        prompts=len(prompts),
        tokens=tokens,
        plain_tokens_s=_median(passes["plain"], "tokens_s"),
        extract_tokens_s=_median(passes["extract"], "tokens_s"),
        proved_tokens_s=statistics.median(proved),
        stock_tokens_s=_median(passes["stock"], "tokens_s"),
        plain_tokens_cpu_s=_median(passes["plain"], "tokens_cpu_s"),
        extract_tokens_cpu_s=_median(passes["extract"], "tokens_cpu_s"),
        stock_tokens_cpu_s=_median(passes["stock"], "tokens_cpu_s"),
        plain_peak_bytes=max(found.peak_bytes for found in passes["plain"]),
        extract_peak_bytes=max(found.peak_bytes for found in passes["extract"]),
        buffer_bytes=settings.engine.dump_buffer_bytes,
        buffer_peak_bytes=max(int(answer.receipt.get("buffer_peak_bytes", 0)) for answer in answers),
    )


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the prompts."""

    tokens: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_cpu_s(self) -> float:
        return self.tokens / max(self.cpu_seconds, 1e-9)


def _length(prompt: Sample) -> int:
    return prompt.num_tokens


def _median(passes: list[Pass], name: str) -> float:
    return float(statistics.median(getattr(found, name) for found in passes))


async def _generate(url: str, prompts: Sequence[Sample], return_states: bool) -> None:
    """The engine's own service, all prompts in flight, by requests that the plugin leaves alone."""
    limits = httpx.Limits(max_connections=512)
    async with httpx.AsyncClient(timeout=3600, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(_one(client, url, prompt, return_states) for prompt in prompts))


async def _one(client: httpx.AsyncClient, url: str, prompt: Sample, return_states: bool) -> None:
    question = {
        "rid": f"bench-{secrets.token_hex(8)}",
        "input_ids": prompt.token_ids.tolist(),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_hidden_states": return_states,
    }
    answer = (await client.post(f"{url}/generate", json=question)).raise_for_status().json()
    states = answer["meta_info"].get("hidden_states")
    if return_states and len(states[0]) != prompt.num_tokens:
        raise RuntimeError(f"SGLang returned {len(states[0])} rows for {prompt.num_tokens} tokens")


def _timed(tokens: int, work: Callable[[], object]) -> Pass:
    """Do the work, with the engine's processor time and its peak resident memory meanwhile."""
    engine = psutil.Process().children(recursive=True)
    stop, peaks = threading.Event(), [0]

    def watch() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            peaks[0] = max(peaks[0], int(sum(_each(engine, lambda process: process.memory_info().rss))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, used = time.perf_counter(), sum(_each(engine, _cpu_seconds))
    try:
        work()
        seconds = time.perf_counter() - start
        return Pass(tokens, seconds, sum(_each(engine, _cpu_seconds)) - used, peaks[0])
    finally:
        stop.set()
        watcher.join()


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _each(processes: Iterable[psutil.Process], read: Callable[[psutil.Process], float]) -> Iterator[float]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield read(process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
