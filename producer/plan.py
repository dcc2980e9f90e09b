"""Say what a run will take before it starts: samples, tokens, bytes, requests, Redis memory, time and cost.

Reads and tokenizes the data as `eaglefeed produce` does, and enqueues nothing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from config.model_identity import run_identity
from eaglefeed.progress import Progress, byte_size, duration
from producer.choice import chosen_rows
from producer.command import add_data_arguments, load_settings, recipe
from producer.estimate import Estimate, Prices, Volume, estimate, histogram_rows, measured_ratio
from producer.pool import num_processes, prepare_in_order
from producer.reading import Reading
from producer.sources import find_sources
from producer.tally import Tally
from storage.node import store_of

EXAMPLE = """example:
  eaglefeed plan data/*.jsonl --run config/smollm2.toml --tokens-per-second 20000 --gpu-hour 2.5 --tb-month 23
"""
BAR_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument("--tokens-per-second", type=float, default=0.0, metavar="N", help="prefill rate of one GPU")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many share the work")
    parser.add_argument("--gpu-hour", type=float, default=0.0, metavar="PRICE", help="price of a GPU for an hour")
    parser.add_argument("--tb-month", type=float, default=0.0, metavar="PRICE", help="price of 10^12 bytes for a month")
    parser.add_argument("--months", type=float, default=1.0, metavar="N", help="how long the shards are kept")


def main(parsed: argparse.Namespace) -> int:
    settings = load_settings(parsed)
    identity = run_identity(settings)
    sources = find_sources(parsed.data)
    reading, tally = Reading(sources), Tally()
    volume = Volume(settings.name, settings.data.batch_tokens)
    seen: set[bytes] = set()
    rows = reading.watch(chosen_rows(sources, parsed.limit, parsed.seed))
    with Progress(f"plan {settings.name}", unit="conversations", quiet=parsed.quiet) as progress:
        for chunk in prepare_in_order(
            recipe(settings, identity), rows, num_processes(parsed.jobs, reading.total_bytes)
        ):
            for row in chunk:
                tally.see(row)
                if row.sample is None:
                    tally.reject(row)
                elif (digest := bytes.fromhex(row.sample.id)) in seen:
                    tally.repeat(was_stored=False)
                else:
                    seen.add(digest)
                    volume.add(row.sample)
                    tally.accept([row.sample], enqueued=False)
            progress.update(tally.rows_settled, **reading.fields(tally))
    volume.finish()
    tally.check()
    prices = Prices(parsed.tokens_per_second, parsed.gpu_hour, parsed.tb_month, max(parsed.gpus, 1), parsed.months)
    figures = estimate(volume, settings, identity, measured_ratio(store_of(settings), settings.name), prices)
    summary = _summary(tally, volume, figures)
    print(json.dumps(summary) if parsed.json else _sentences(summary, figures, prices))
    return 1 if figures.warnings else 0


def _summary(tally: Tally, volume: Volume, figures: Estimate) -> dict[str, Any]:
    counts = tally.summary()
    kept = ("rows", "unique", "duplicate", "rejected", "truncated", "tokens_lost", "supervised_tokens", "shapes")
    return {
        **{name: counts[name] for name in kept},
        **asdict(figures),
        "longest_tokens": volume.longest,
        "lengths": histogram_rows(volume.histogram),
    }


def _sentences(summary: dict[str, Any], figures: Estimate, prices: Prices) -> str:
    rejected, longest = sum(summary["rejected"].values()), summary["longest_tokens"]
    lines = [
        f"{summary['rows']:,} rows = {summary['unique']:,} unique + {summary['duplicate']:,} duplicate + "
        f"{rejected:,} rejected" + "".join(f"\n  {count:>9,}  {name}" for name, count in summary["rejected"].items()),
        f"{figures.tokens:,} tokens, {summary['supervised_tokens']:,} supervised; longest {longest:,}",
        *_histogram(summary["lengths"]),
        f"raw     {byte_size(figures.raw_bytes)} ({figures.bytes_per_token:,} bytes a token)",
        f"stored  {byte_size(figures.stored_bytes)} (ratio {figures.ratio}, {figures.ratio_source})",
        f"        {figures.shards:,} shards, {figures.s3_requests:,} requests to the store",
        f"Redis   {byte_size(figures.redis_bytes)}",
    ]
    if figures.hours:
        lines.append(f"time    {duration(figures.hours * 3600)} on {prices.gpus} GPU(s)")
    if figures.gpu_cost or figures.store_cost:
        lines.append(
            f"cost    {figures.gpu_cost:,.2f} computing, {figures.store_cost:,.2f} storing {prices.months:g} month(s)"
        )
    lines += [f"warning: {warning}" for warning in figures.warnings]
    return "\n".join(lines)


def _histogram(rows: list[dict[str, Any]]) -> list[str]:
    most = max((row["samples"] for row in rows), default=1)
    return [
        f"  to {row['up_to_tokens']:>9,} tokens  {row['samples']:>9,}  {'█' * round(BAR_WIDTH * row['samples'] / most)}"
        for row in rows
    ]
