"""Read conversations, make unique tokenized samples of them, and enqueue these for the GPU nodes.

DATA is a file, a folder, a glob, - (standard input) or hf:NAME[:split]: JSONL, JSON, Parquet, Arrow, plain or packed
(.gz, .zst), rows in any of the known shapes. Stop it with Ctrl-C; the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from config.environment import setting_overrides
from config.model_identity import model_folder
from config.queues import connect
from config.run import RunSettings, load_run
from config.run_state import require_producing
from eaglefeed.errors import EnvironmentFault
from eaglefeed.identity import RunIdentity
from eaglefeed.progress import Progress
from producer import report
from producer.choice import chosen_rows
from producer.dedup import seed_from_store
from producer.enqueue import Enqueuer, require_redis
from producer.near import NearDuplicates
from producer.pool import Recipe, num_processes, prepare_in_order
from producer.production import Production
from producer.reading import Reading
from producer.registration import register
from producer.rejects import RejectsFile
from producer.show import show
from producer.sources import Source, find_sources
from producer.tokens import Prepared
from storage.node import store_of

EXAMPLE = """example:
  eaglefeed produce data/*.jsonl more.parquet --run config/smollm2.toml
  eaglefeed produce data/*.jsonl --run config/smollm2.toml --show 3      what will be learned, in colour
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument("--redis", metavar="URL", help="default: $REDIS_URL, else redis://127.0.0.1:6379/0")
    parser.add_argument("--show", type=_count, metavar="N", help="print N conversations, supervised tokens in colour")
    parser.add_argument(
        "--near-dup",
        type=_count,
        metavar="N",
        help="report conversations that share more than N first tokens with an earlier one; nothing is dropped",
    )
    parser.add_argument("--priority", action="store_true", help="put the batches at the head of the queue")
    parser.add_argument("--rejects", metavar="FILE", help="default: .eaglefeed/<run>/rejects.jsonl")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every verb that reads conversations."""
    parser.add_argument("data", nargs="+", metavar="DATA", help="file, folder, glob, - or hf:NAME[:split]")
    parser.add_argument("--run", required=True, metavar="RUN.toml")
    parser.add_argument("--store", metavar="URL|DIR", help="instead of the run file's store.url")
    parser.add_argument("--shape", help="read every row as this shape instead of finding it (see docs/producer.md)")
    parser.add_argument("--limit", type=_count, metavar="N", help="take the first N rows only")
    parser.add_argument("--seed", type=int, metavar="S", help="with --limit: draw the N rows at random")
    parser.add_argument("--jobs", type=int, metavar="N", help="tokenizing processes; 0 = in this one; default: cores")
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    settings = load_settings(parsed)
    sources = find_sources(parsed.data)
    if parsed.show:
        return show(recipe(settings, None), chosen_rows(sources, parsed.limit, parsed.seed), parsed.show)
    require_redis(parsed.redis)
    redis, store = connect(parsed.redis), store_of(settings)
    require_producing(redis, settings.name)
    try:
        identity = register(settings, store, redis)
        seed_from_store(redis, store, settings.name, parsed.quiet)
        return _produce(parsed, settings, identity, redis, sources)
    except RedisError as error:
        raise EnvironmentFault(
            f"Redis went away or refused: {error}. The same command goes on where it stopped"
        ) from error


def load_settings(parsed: argparse.Namespace) -> RunSettings:
    given = {"store.url": parsed.store, "data.shape": parsed.shape}
    overrides: dict[str, Any] = setting_overrides()
    return load_run(parsed.run, overrides | {key: value for key, value in given.items() if value is not None})


def recipe(settings: RunSettings, identity: RunIdentity | None) -> Recipe:
    """How rows are prepared; without an identity the vocabulary is not bounded."""
    vocab_size = identity.vocab_size if identity else 1 << 32
    folder = str(model_folder(settings))
    return Recipe(folder, settings.model.trust_remote_code, settings.data, vocab_size)


def _produce(
    parsed: argparse.Namespace, settings: RunSettings, identity: RunIdentity, redis: Redis, sources: list[Source]
) -> int:
    rejects = RejectsFile(Path(parsed.rejects or f".eaglefeed/{settings.name}/rejects.jsonl"))
    near = NearDuplicates(parsed.near_dup) if parsed.near_dup else None
    reading = Reading(sources)
    with Progress(f"produce {settings.name}", unit="conversations", quiet=parsed.quiet) as progress:
        enqueuer = Enqueuer(
            redis,
            settings.name,
            settings.data.max_queued_batches,
            parsed.priority,
            report.Pause(settings.data.max_queued_batches, parsed.quiet),
        )
        production = Production(redis, enqueuer, settings.data.batch_tokens, rejects, near.add if near else _ignore)
        try:
            rows = reading.watch(chosen_rows(sources, parsed.limit, parsed.seed))
            processes = num_processes(parsed.jobs, reading.total_bytes)
            for chunk in prepare_in_order(recipe(settings, identity), rows, processes):
                production.take(chunk)
                progress.update(production.tally.rows_settled, **reading.fields(production.tally))
            production.finish()
            progress.update(production.tally.rows_settled, **reading.fields(production.tally))
        except KeyboardInterrupt:
            _report(parsed, production, rejects, near)
            raise
        finally:
            rejects.close()
    production.tally.check()
    _report(parsed, production, rejects, near)
    return report.broken_files(production.tally, sys.stderr)


def _report(
    parsed: argparse.Namespace, production: Production, rejects: RejectsFile, near: NearDuplicates | None
) -> None:
    summary: dict[str, Any] = production.tally.summary()
    if near:
        summary["near_duplicates"] = near.summary()
    print(json.dumps(summary) if parsed.json else report.sentences(summary, rejects.path), flush=True)


def _ignore(row: Prepared) -> None:
    pass


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count from 1")
    return number
