"""The audit over many manifests of a directory store, made on the spot: its time, and its progress while it runs."""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from bench.manifests import IDENTITY, write_run
from eaglefeed.progress import Progress
from eaglefeed.stores import open_store
from storage.audit import audit
from storage.audit_report import AuditReport

LIMIT_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--manifests", type=int, default=100_000, help="default %(default)s")
    parser.add_argument("--samples", type=int, default=10, help="samples a manifest (default %(default)s: a million)")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="eaglefeed-bench-", dir=parsed.folder) as folder:
        write_run(Path(folder), parsed.manifests, parsed.samples, parsed.quiet)
        started, cpu = time.perf_counter(), time.process_time()
        report = _audit(folder, parsed.manifests, parsed.quiet)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    record = {
        "manifests": parsed.manifests,
        "samples": report.stored,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "manifests_a_second": round(parsed.manifests / seconds),
        "resident_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "clean": report.is_clean,
        "cores": os.cpu_count(),
    }
    print(json.dumps(record) if parsed.json else "\n".join(f"{key:<20} {value}" for key, value in record.items()))
    return 0 if report.is_clean else 1


def _audit(folder: str, num_manifests: int, quiet: bool) -> AuditReport:
    with Progress("audit", num_manifests, "manifests", quiet) as progress:
        return audit(
            open_store(folder),
            IDENTITY.run,
            on_manifest=lambda manifests, samples: progress.update(manifests, samples=f"{samples:,}"),
        )
