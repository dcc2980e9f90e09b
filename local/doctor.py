"""Checks this machine for a run and prints what to do: exit code 0 when all is well, 1 when something is wrong.

Python, GPU and driver, SGLang and the hooks' targets, the model, Redis' settings, the clock, the store (write, read,
create only once), the spool's disk, memory, open files and ports. It leaves nothing behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from config import environment
from config.run import RunSettings, load_run, parse_run
from local import engine_checks, machine_checks, service_checks
from local.findings import Finding, print_findings

EXAMPLE = """examples:
  eaglefeed doctor                            what every machine needs
  eaglefeed doctor --run run.toml             also this run's model, GPUs, spool and store
  eaglefeed doctor --run run.toml --only redis store clock
"""
CHECKS = ("python", "gpu", "sglang", "model", "redis", "clock", "store", "disk", "memory", "files", "ports")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="RUN.toml", help="the run to prepare for; default EAGLEFEED_RUN")
    parser.add_argument("--redis", metavar="URL", help="default REDIS_URL")
    parser.add_argument("--store", metavar="URL|DIR", help="instead of the run file's [store] url")
    parser.add_argument("--port", type=int, default=8080, help="the dashboard's port; default 8080")
    parser.add_argument("--only", nargs="+", choices=CHECKS, metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--json", action="store_true", help="one JSON list of findings")
    parser.add_argument("--quiet", action="store_true", help="only what is wrong, and warnings")


def main(parsed: argparse.Namespace) -> int:
    findings = []
    for finding in examine(parsed):
        findings.append(finding)
        if not parsed.json and not (parsed.quiet and finding.verdict == "ok"):
            print_findings([finding])
    if parsed.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    if not parsed.json and not parsed.quiet:
        print(f"{wrong} wrong" if wrong else "This machine is ready.")
    return 1 if wrong else 0


def examine(parsed: argparse.Namespace) -> Iterator[Finding]:
    """The chosen checks' findings, one after the other, as they are made."""
    overrides: dict[str, Any] = {**environment.setting_overrides()}
    if parsed.store:
        overrides["store.url"] = parsed.store
    run_file = parsed.run or environment.run_file()
    settings = load_run(run_file, overrides) if run_file else _no_run(overrides)
    redis = parsed.redis or environment.redis_url()
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "python": machine_checks.check_python,
        "gpu": lambda: machine_checks.check_gpu(settings),
        "sglang": _quietly,
        "model": lambda: engine_checks.check_model(settings) if run_file else iter(()),
        "redis": lambda: service_checks.check_redis(redis),
        "clock": lambda: service_checks.check_clock(redis),
        "store": lambda: service_checks.check_store(settings.store.url),
        "disk": lambda: machine_checks.check_disk(settings),
        "memory": lambda: machine_checks.check_memory(settings),
        "files": machine_checks.check_open_files,
        "ports": lambda: machine_checks.check_ports(environment.engine_urls(), parsed.port),
    }
    for name in parsed.only or CHECKS:
        yield from checks[name]()


def _quietly() -> Iterator[Finding]:
    """SGLang's import prints what kernels a machine lacks; none of that is ours."""
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        found = list(engine_checks.check_sglang())
    yield from found


def _no_run(overrides: dict[str, Any]) -> RunSettings:
    return parse_run({"name": "doctor", "model": {"path": "none"}}, "doctor", overrides)
