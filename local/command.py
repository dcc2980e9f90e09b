"""Take conversations to audited shards on this machine: queue, store, engine, workers and producer in one command.

Without --redis a valkey-server is embedded; --store takes s3://bucket/prefix, a directory, or `embedded`, a real S3
server that runs as long as the command. Ctrl-C stops everything it started; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from config.environment import without_password
from config.model_identity import run_identity
from config.run import RunSettings, load_run
from local.addresses import LocalAddresses, addresses_of, objectstore_ports
from local.claim import claim_folder
from local.copy_run import copy_run, wait_for_store
from local.production import ProducerChild
from local.stack import Stack
from local.watch import Pending, watch
from local.weed_ports import no_weed_sockets_left

EXAMPLE = """examples:
  eaglefeed run data/*.jsonl --run config/smollm2.toml
  eaglefeed run data.parquet --run my.toml --store s3://bucket/runs --redis rediss://host:6379/0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", nargs="+", metavar="DATA", help="file, folder, glob, or hf:NAME[:split]")
    parser.add_argument("--run", required=True, metavar="RUN.toml")
    parser.add_argument("--store", metavar="URL|DIR", help="instead of store.url; `embedded` starts an S3 server")
    parser.add_argument("--redis", metavar="URL", help="use this Redis instead of an embedded one")
    parser.add_argument("--state", metavar="DIR", help="logs and the queue's files (default: .eaglefeed/<run>)")
    parser.add_argument("--copy-to", metavar="DIR", help="afterwards, copy the run from the store to a directory")
    parser.add_argument("--no-dashboard", action="store_true", help="do not serve the page of progress")
    parser.add_argument("--deep", action="store_true", help="let the audit read every shard back")
    parser.add_argument("--json", action="store_true", help="print the audit as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    """Exit codes: 0 audited clean, 1 the audit or a dead letter says what is wrong, 130 stopped."""
    logging.basicConfig(level=logging.WARNING, format="eaglefeed: %(message)s")
    settings = load_run(parsed.run)
    run_identity(settings)  # a wrong model folder is said before anything is started
    state = Path(parsed.state or f".eaglefeed/{settings.name}")
    with claim_folder(state), _interruptible():
        addresses = addresses_of(settings, parsed, state)
        with (
            no_weed_sockets_left(objectstore_ports(addresses.variables)),
            Stack(addresses.infrastructure, addresses.variables, state / "logs") as infrastructure,
        ):
            infrastructure.start()
            if "objectstore" in addresses.infrastructure:
                wait_for_store(addresses.store_url, addresses.environment)
            outcome = _take_to_the_store(parsed, settings, state, addresses)
            audit_status = _audit(parsed, addresses)
            if parsed.copy_to:
                copy_run(addresses.store_url, parsed.copy_to, settings.name, addresses.environment, parsed.quiet)
            _say(parsed, addresses, state, outcome)
            return audit_status or (1 if outcome.dead else 0)


def _take_to_the_store(
    parsed: argparse.Namespace, settings: RunSettings, state: Path, addresses: LocalAddresses
) -> Pending:
    """The producer and, when there is something to do, the node; returns when nothing is pending."""
    redis = addresses.connect()
    with ProducerChild(parsed.data, parsed.run, addresses, state / "logs") as producer:
        producer.wait_for_first_batch(redis)
        pending = Pending.read(redis, settings.name, addresses.node)
        if producer.is_done and not pending.jobs:
            print(producer.summary(), file=sys.stderr)
            return pending
        with Stack(addresses.node_services, addresses.variables, state / "logs") as node:
            node.start()
            if addresses.dashboard_url and not parsed.quiet:
                print(f"page      {addresses.dashboard_url}", file=sys.stderr)
            pending = watch(redis, settings.name, addresses.node, producer, node, parsed.quiet)
        print(producer.summary(), file=sys.stderr)
        return pending


def _audit(parsed: argparse.Namespace, addresses: LocalAddresses) -> int:
    """The audit's own command, as a person would run it."""
    command = [sys.executable, "-m", "eaglefeed.cli", "audit", "--run", parsed.run, "--quiet"]
    command += ["--deep"] * parsed.deep + ["--json"] * parsed.json
    return subprocess.run(command, env={**os.environ, **addresses.environment}, check=False).returncode


def _say(parsed: argparse.Namespace, addresses: LocalAddresses, state: Path, outcome: Pending) -> None:
    say = {"shards": parsed.copy_to or addresses.store_url, "logs": str(state / "logs")}
    if outcome.dead:
        say["dead letters"] = f"{outcome.dead}: `eaglefeed dead list` (Redis {without_password(addresses.redis_url)})"
    if not parsed.quiet:
        width = max(map(len, say))
        print("\n".join(f"{name:<{width}}  {value}" for name, value in say.items()), file=sys.stderr)


class _interruptible:
    """SIGTERM ends the command as Ctrl-C does, so that what it started is stopped in either case."""

    def __enter__(self) -> None:
        self._previous = signal.signal(signal.SIGTERM, _interrupt)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._previous)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
