"""Prove an engine: whole, uncached, the same alone and in a batch, and each layer against transformers."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.model_identity import run_identity
from config.ports import free_port
from config.run import RunSettings, load_run
from eaglefeed.errors import EaglefeedError
from eaglefeed.progress import Progress
from workers.engine import Engine
from workers.engine_command import EngineProcesses
from workers.engine_launch import device_of, engine_launch
from workers.evidence import Evidence, gather
from workers.handshake import shake_hands
from workers.verdict import judge, table

EXAMPLE = """example:
  eaglefeed prove --run config/smollm2.toml --samples 12
  eaglefeed prove --run RUN.toml --engine http://127.0.0.1:30000 --spool /data/spool --json"""

_LOG_LINES = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", required=True, metavar="RUN.toml", help="the run whose engine is proved")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="prompts to compare (default: %(default)s)")
    parser.add_argument("--engine", metavar="URL", help="take this engine instead of starting one")
    parser.add_argument("--spool", metavar="DIR", help="the running engine's spool (default: spool.path of the run)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def main(parsed: argparse.Namespace) -> int:
    """Exit codes: 0 proved, 1 a breach, 3 the engine did not start."""
    settings = load_run(parsed.run, {"spool.path": parsed.spool} if parsed.spool else None)
    evidence = prove_engine_of(settings, parsed.samples, parsed.engine, parsed.quiet)
    result = judge(evidence)
    print(json.dumps(result) if parsed.json else table(result))
    return 0 if result["verdict"] == "pass" else 1


def prove_engine_of(settings: RunSettings, num_samples: int, url: str | None = None, quiet: bool = True) -> Evidence:
    """What an engine of the run does with prompts of every kind; starts one unless ``url`` names it."""
    identity, timeout_seconds = run_identity(settings), settings.engine.request_timeout_seconds
    with Progress("prove", None, "prompts", quiet) as progress:
        if url:
            return gather(settings, identity, Engine([url], timeout_seconds), num_samples, None, progress)
        with tempfile.TemporaryDirectory(prefix="eaglefeed-prove-") as folder:
            scratch = _with(settings, "spool", path=folder)
            progress.update(0, step="starting the engine")
            with running_engine(scratch) as engine:
                evidence = gather(scratch, identity, engine, num_samples, None, progress)
            chunked, reason = _chunked(scratch)
            if chunked is None:
                return replace(evidence, chunked_skipped=reason)
            progress.advance(0, step="starting the engine in chunks")
            with running_engine(chunked) as engine:
                return gather(chunked, identity, engine, num_samples, evidence, progress)


@contextmanager
def running_engine(settings: RunSettings) -> Iterator[Engine]:
    """One replica of the run's engine on a free port; its log is shown when it does not start."""
    identity, spool, port = run_identity(settings), Path(settings.spool.path), free_port()
    url = f"http://127.0.0.1:{port}"
    launch = engine_launch(settings, identity, spool, "127.0.0.1", port)
    with tempfile.TemporaryFile("w+") as log, EngineProcesses([launch], log) as processes:
        engine = Engine([url], settings.engine.request_timeout_seconds)
        try:
            processes.wait_until_ready([url], settings.engine.start_timeout_seconds)
            shake_hands(engine, identity, spool)
        except EaglefeedError:
            log.seek(0)
            sys.stderr.write("".join(log.readlines()[-_LOG_LINES:]))
            raise
        yield engine


def _chunked(settings: RunSettings) -> tuple[RunSettings | None, str]:
    """The run with chunks small enough to cut the prompts; None with the reason where the machine cannot."""
    if settings.engine.chunked_prefill_tokens:
        return _with(settings, "engine", chunked_prefill_tokens=0), ""
    if device_of(settings.engine) == "cpu" and run_identity(settings).engine and _is_latent(settings):
        return None, "SGLang's CPU attention cannot read a latent (MLA) cache back, so chunks need a GPU"
    return _with(settings, "engine", chunked_prefill_tokens=64), ""


def _is_latent(settings: RunSettings) -> bool:
    from config.model_identity import model_folder

    config = json.loads((model_folder(settings) / "config.json").read_text("utf-8"))
    return bool((config.get("text_config") or config).get("kv_lora_rank"))


def _with(settings: RunSettings, section: str, **values: Any) -> RunSettings:
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update=values)})
