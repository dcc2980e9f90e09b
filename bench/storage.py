"""A storage worker against the codec alone and the upload alone: do encoding and uploading overlap, in what memory."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.throttle import Throttle
from eaglefeed.dump import read_dump
from eaglefeed.progress import Progress
from eaglefeed.records import Batch
from eaglefeed.shard_writer import write_shard
from eaglefeed.stores import Store

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Figures:
    """MB = 10^6 bytes of raw states; the worker's time is from its first job's start to its last one's end.

    Attributes:
        share: worker over the slower of codec and upload.
        cores: the worker's own, and server_cores: SeaweedFS's (0: the same ones).
        resident_mb: the worker's peak resident memory; limit_mb: a shard and 512 MB.
    """

    store: str
    upload_limit_mb_s: float
    batches: int
    raw_mb: float
    shard_mb: float
    codec_mb_s: float
    upload_mb_s: float
    worker_mb_s: float
    share: float
    resident_mb: float
    limit_mb: float
    cores: int
    server_cores: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8, help="samples a batch (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens a sample (default %(default)s)")
    parser.add_argument("--width", type=int, default=4096, help="hidden width (default %(default)s)")
    parser.add_argument("--directory", action="store_true", help="a directory store in place of SeaweedFS")
    parser.add_argument(
        "--server-cores", type=int, default=1, help="cores that SeaweedFS has to itself; 0: all share all (default 1)"
    )
    parser.add_argument("--upload-mb-s", type=float, default=0, help="hold the way to the store to so many MB/s")
    parser.add_argument("--folder", type=Path, help="where spool and store are made (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="eaglefeed-bench-", dir=parsed.folder) as folder, ExitStack() as stack:
        figures = _measure(parsed, Path(folder), stack)
    record = asdict(figures)
    print(json.dumps(record) if parsed.json else "\n".join(f"{key:<18} {value}" for key, value in record.items()))
    return 0


def _measure(parsed: argparse.Namespace, folder: Path, stack: ExitStack) -> Figures:
    home = _home(parsed, folder, stack)
    batches = [(batch, home.write_dumps(batch)) for batch in _batches(home, parsed)]
    raw_bytes = sum(batch.num_tokens for batch, _ in batches) * home.identity.bytes_per_token
    codec_seconds, shards = _codec_alone(home, batches, folder)
    shard_bytes = max(path.stat().st_size for path, _ in shards)
    upload_seconds = _upload_alone(home.store(), shards)
    worker_seconds, resident_kb = _worker(home, batches, parsed.quiet)
    codec, upload, worker = (raw_bytes / seconds / 1e6 for seconds in (codec_seconds, upload_seconds, worker_seconds))
    return Figures(
        store="directory" if parsed.directory else "SeaweedFS",
        upload_limit_mb_s=parsed.upload_mb_s,
        batches=len(batches),
        raw_mb=round(raw_bytes / 1e6, 1),
        shard_mb=round(shard_bytes / 1e6, 1),
        codec_mb_s=round(codec, 1),
        upload_mb_s=round(upload, 1),
        worker_mb_s=round(worker, 1),
        share=round(worker / min(codec, upload), 3),
        resident_mb=round(resident_kb * 1024 / 1e6, 1),
        limit_mb=round(shard_bytes / 1e6 + 512, 1),
        cores=len(os.sched_getaffinity(0)),
        server_cores=0 if parsed.directory else parsed.server_cores,
    )


def _home(parsed: argparse.Namespace, folder: Path, stack: ExitStack) -> Any:
    """A node as the tests make one, with real servers of its own."""
    from tests.services import BUCKET, Seaweed, Valkey
    from tests.storage_home import StorageHome

    valkey = Valkey(folder / "valkey")
    valkey.start()
    stack.callback(valkey.stop)
    url = None
    if not parsed.directory:
        server = Seaweed(folder / "weed")
        with _cores_of(parsed.server_cores):
            server.start()
        stack.callback(server.stop, signal.SIGKILL)
        os.environ.update(server.environment)
        url = f"s3://{BUCKET}/bench"
        if parsed.upload_mb_s:
            throttle = stack.enter_context(Throttle(server.environment["S3_ENDPOINT"], parsed.upload_mb_s * 1e6))
            os.environ["S3_ENDPOINT"] = throttle.endpoint
    return StorageHome.make(
        folder, f"bench-{secrets.token_hex(3)}", valkey.url, url, hidden_size=parsed.width, spool_settings=""
    )


@contextmanager
def _cores_of(count: int) -> Iterator[None]:
    """What is started in the block keeps the last ``count`` cores, and this process and its later children the others.

    A store's own machine does its work; here it would take the codec's core, and what is measured is two programs'
    fight for one processor.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 0 < count < len(cores):
        yield
        return
    os.sched_setaffinity(0, cores[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores[:-count])


def _batches(home: Any, parsed: argparse.Namespace) -> Iterator[Batch]:
    with Progress("writing dumps", parsed.batches, "batches", parsed.quiet) as progress:
        for number in range(parsed.batches):
            yield home.batch([parsed.tokens] * parsed.samples, first=number * parsed.samples)
            progress.update(number + 1)


def _codec_alone(home: Any, batches: list[tuple[Batch, dict[str, str]]], folder: Path) -> tuple[float, list[Any]]:
    """Seconds to make all shards' files, and the files."""
    (folder / "shards").mkdir()
    settings, shards, started = home.settings.store, [], time.perf_counter()
    for batch, dumps in batches:
        opened = {sample_id: read_dump(home.spool_folder / name) for sample_id, name in dumps.items()}
        path = folder / "shards" / batch.id
        written = write_shard(path, home.identity, batch, opened, threads=settings.encode_threads)
        shards.append((path, written.shard_checksum))
    return time.perf_counter() - started, shards


def _upload_alone(store: Store, shards: list[Any]) -> float:
    """Seconds to put all files into the store, each compared with the checksum that the store reports."""
    started = time.perf_counter()
    for path, checksum in shards:
        store.put_file(f"alone/{path.name}", path, checksum)
    seconds = time.perf_counter() - started
    for path, _ in shards:
        store.delete(f"alone/{path.name}")
        path.unlink()
    return seconds


def _worker(home: Any, batches: list[tuple[Batch, dict[str, str]]], quiet: bool) -> tuple[float, int]:
    """Seconds a real worker needs for all batches, its start left out, and its peak resident memory in KB."""
    redis = home.redis
    worker = home.start_worker()
    key = f"rq:workers:store.{home.node}"
    while not redis.scard(key) and worker.poll() is None:
        time.sleep(_POLL_SECONDS)
    time.sleep(3)  # its clients and modules are loaded, and the spool is cleared of what no job names
    batches = [(batch, home.write_dumps(batch)) for batch, _ in batches]
    with Progress("storage worker", len(batches), "batches", quiet) as progress, _peak_of(worker) as peak:
        started = time.perf_counter()
        jobs = [home.enqueue(batch, dumps) for batch, dumps in batches]
        while (left := sum(map(home.has_job, jobs))) and worker.poll() is None:
            progress.update(len(batches) - left)
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - started
        progress.update(len(batches))
    worker.terminate()
    worker.wait()
    redis.close()
    if home.waiting():
        raise RuntimeError(f"the worker left {home.waiting()}: {home.folder}/worker-{home.node}.log")
    return seconds, peak[0]


@contextmanager
def _peak_of(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """The peak of a process's resident memory in KB while the block runs."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS / 2):
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    peak[0] = max(peak[0], int(line.split()[1]))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
