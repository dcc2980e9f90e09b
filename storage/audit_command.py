"""Count what was enqueued against what is stored; exit 1, with the list, when anything is missing, double or short."""

from __future__ import annotations

import argparse
import json
import sys

from config import counters
from eaglefeed.progress import Progress, byte_size
from storage.audit import audit
from storage.audit_report import AuditReport
from storage.run_choice import add_run_arguments, chosen_run, reachable_redis

EXAMPLE = "example: eaglefeed audit --run config/smollm2.toml --store s3://bucket/runs --deep"
SHOWN_PROBLEMS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, with_redis=True)
    parser.add_argument("--deep", action="store_true", help="read every shard back, decode it, compare its checksums")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--all", action="store_true", help=f"list all problems, not the first {SHOWN_PROBLEMS}")


def main(parsed: argparse.Namespace) -> int:
    run = chosen_run(parsed)
    redis, why_not = reachable_redis(parsed.redis)
    total = counters.read(redis, run.name).get("batches") if redis else None
    label = "deep audit" if parsed.deep else "audit"
    with Progress(label, total or None, "manifests", parsed.quiet) as progress:
        report = audit(
            run.store,
            run.name,
            redis,
            parsed.deep,
            lambda manifests, samples: progress.update(manifests, samples=f"{samples:,}"),
        )
    if parsed.json:
        print(json.dumps(report.to_record()))
    else:
        print(_page(report, run.store.url, parsed.deep))
    _list_problems(report, parsed.all)
    if why_not and not parsed.quiet:
        print(f"eaglefeed: {why_not}; what was enqueued is not known", file=sys.stderr)
    return 0 if report.is_clean else 1


def _page(report: AuditReport, url: str, deep: bool) -> str:
    lines = [
        f"run {report.run} in {url}",
        f"  unique     {report.unique:>12,}   {report.unique_from}",
        f"  stored     {report.stored:>12,}   "
        + ("every shard read back and decoded" if deep else "one row a token by its manifest; --deep reads the shards"),
        f"  rejected   {report.rejected:>12,}",
        f"  missing    {report.missing:>12,}",
        f"  duplicate  {report.duplicate:>12,}",
        f"  short      {report.short:>12,}",
        f"  tokens     {report.tokens:>12,}",
        f"  raw        {byte_size(report.raw_bytes):>12}",
        f"  stored     {byte_size(report.stored_bytes):>12}   {report.ratio:.3f} times smaller",
    ]
    return "\n".join(lines)


def _list_problems(report: AuditReport, show_all: bool) -> None:
    shown = report.problems if show_all else report.problems[:SHOWN_PROBLEMS]
    for problem in shown:
        print(f"{problem.kind}: {problem.detail}", file=sys.stderr)
    if len(report.problems) > len(shown):
        print(f"… and {len(report.problems) - len(shown):,} more; --all lists them", file=sys.stderr)
