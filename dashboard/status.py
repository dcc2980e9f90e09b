"""The page's numbers in the terminal: how far, how fast, until when, and what is wrong.

Exit code 1 when a run is stalled, has dead letters, or an engine is missing: scripts can act on it.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from redis.exceptions import RedisError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from config import environment
from config.queues import connect
from config.redis_faults import explained
from dashboard import wording
from dashboard.figures import Numbers, Run
from dashboard.pipeline import stages
from dashboard.reading import REDIS_RETRIES, Reader
from eaglefeed.errors import EnvironmentFault, UsageError

EXAMPLE = """examples:
  eaglefeed status                         every run, the pipeline, the nodes
  eaglefeed status --watch                 the same, renewed every two seconds
  eaglefeed status --json | jq .runs[0].percent
"""
_COLOURS = {
    "running": "green",
    "done": "green",
    "starting": "yellow",
    "paused": "yellow",
    "cancelled": "yellow",
    "closed": "green",
    "stalled": "red",
    "dead": "red",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--redis", metavar="URL", help="Redis of the run; default REDIS_URL")
    parser.add_argument("--name", metavar="RUN", help="only this run")
    parser.add_argument("--watch", action="store_true", help="renew until Ctrl-C")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="of --watch; default 2")
    parser.add_argument("--json", action="store_true", help="one JSON object (one a line with --watch)")


def main(parsed: argparse.Namespace) -> int:
    url = parsed.redis or environment.redis_url()
    reader = Reader(connect(url, REDIS_RETRIES))
    numbers = read_or_explain(reader, url)
    if parsed.name and numbers.runs and parsed.name not in (run.name for run in numbers.runs):
        known = ", ".join(run.name for run in numbers.runs)
        raise UsageError(f"no run {parsed.name!r} in this Redis; there are: {known}")
    console = Console()
    if not parsed.watch:
        show(console, numbers, parsed)
        return 1 if is_wrong(numbers) else 0
    if parsed.json:
        while True:
            show(console, numbers, parsed)
            time.sleep(parsed.interval)
            numbers = read_or_explain(reader, url)
    with Live(screen(numbers, parsed.name), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(parsed.interval)
            numbers = read_or_explain(reader, url)
            live.update(screen(numbers, parsed.name), refresh=True)


def read_or_explain(reader: Reader, url: str) -> Numbers:
    """One poll; raises EnvironmentFault with the way out when Redis does not answer."""
    try:
        return reader.read()
    except RedisError as error:
        raise EnvironmentFault(f"Redis at {explained(error, url)}") from error


def is_wrong(numbers: Numbers) -> bool:
    """Whether somebody should look: a stalled run, dead letters, or batches and no engine."""
    return numbers.dead > 0 or any(run.state in ("stalled", "dead") for run in numbers.runs)


def as_record(numbers: Numbers) -> dict[str, Any]:
    """The JSON of ``--json``: the records' own fields, and what is computed from them."""
    return {
        "taken_at": numbers.taken_at,
        "runs": [_run_record(run) for run in numbers.runs],
        "queues": [asdict(queue) for queue in numbers.queues],
        "nodes": [asdict(node) | {"is_stale": node.is_stale} for node in numbers.nodes],
        "stages": [asdict(stage) for stage in stages(numbers, numbers.run(None))],
        "dead_letters": numbers.dead,
    }


def show(console: Console, numbers: Numbers, parsed: argparse.Namespace) -> None:
    """Print once, as JSON or as a screen."""
    if parsed.json:
        print(json.dumps(as_record(numbers)), flush=True)
    else:
        console.print(screen(numbers, parsed.name))


def screen(numbers: Numbers, only: str | None = None) -> RenderableType:
    """Everything as one rich renderable; without colour when the output is no terminal."""
    runs = [run for run in numbers.runs if only in (None, run.name)]
    if not runs:
        return Text("No run has been enqueued in this Redis yet. `eaglefeed produce DATA --run RUN.toml` starts one.")
    parts: list[RenderableType] = [part for run in runs for part in (_headline(run), _rates(run), Text(""))]
    parts += [_pipeline(numbers, numbers.run(only)), _nodes(numbers)]
    if numbers.dead:
        letters = "1 dead letter" if numbers.dead == 1 else f"{numbers.dead:,} dead letters"
        parts.append(Text(f"{letters}: `eaglefeed dead list` shows why", style="red"))
    return Group(*parts)


def _headline(run: Run) -> Text:
    text = Text(f"{run.name}  ", style="bold")
    text.append(wording.state(run), style=_COLOURS.get(run.state, ""))
    text.append(
        f"\n  {run.stored:,} of {run.unique:,} samples stored ({run.percent:.1f} %)   ETA {wording.eta(run)}"
        f"   rejected {run.counts.get('rejected', 0):,}   dead {run.counts.get('dead', 0):,}"
        f"   compression {wording.ratio(run)}",
        style="not bold",
    )
    for kind, colour in (("rejected", "yellow"), ("dead", "red")):
        reasons = [f"{reason} {count:,}" for reason, count in run.reasons(kind).items()]
        if reasons:
            text.append(f"\n  {kind}: " + ", ".join(reasons), style=f"not bold {colour}")
    return text


def _rates(run: Run) -> Table:
    table = Table("window", "samples/s", "tokens/s", "raw MB/s", "stored MB/s", box=None, padding=(0, 2))
    for window in run.rates:
        table.add_row(
            f"{window.window_minutes} min",
            wording.rate(window.samples),
            wording.rate(window.tokens),
            wording.megabytes(window.raw_bytes),
            wording.megabytes(window.stored_bytes),
        )
    return table


def _pipeline(numbers: Numbers, run: Run | None) -> Table:
    table = Table("stage", "depth", "oldest", "", box=None, padding=(0, 2))
    for stage in stages(numbers, run):
        note = stage.detail + ("   <- narrow" if stage.is_narrow else "")
        table.add_row(
            stage.name, stage.depth, wording.age(stage.age_seconds), note, style="yellow" if stage.is_narrow else ""
        )
    return table


def _nodes(numbers: Numbers) -> RenderableType:
    if not numbers.nodes:
        return Text("No node has reported yet.")
    table = Table("node", "device", "engine", "state", "spool", "last sample", "", box=None, padding=(0, 2))
    for node in numbers.nodes:
        state = "stale" if node.is_stale else node.engine_state
        table.add_row(
            node.name,
            node.device,
            node.engine_version,
            state,
            f"{100 * node.spool_fraction:.0f} % of {wording.size(node.spool_max_bytes)}",
            wording.age(node.last_sample_seconds),
            node.message,
            style="" if state == "ready" else "yellow",
        )
    return table


def _run_record(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "model": run.model,
        "state": run.state,
        "percent": run.percent,
        "eta_seconds": run.eta_seconds,
        "quiet_seconds": run.quiet_seconds,
        "waiting_batches": run.waiting_batches,
        "compression_ratio": run.compression_ratio,
        "counts": dict(run.counts),
        "rates": [asdict(window) for window in run.rates],
    }
