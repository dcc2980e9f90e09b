"""What nobody else should see: secrets in logs, Redis, the store or ``ps``, and ports that are open to others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
from redis import Redis

from eaglefeed.stores import open_store
from tests.chaos.node import RUN
from tests.chaos.service import MARK
from tests.chaos.stand import Stand
from tests.services import BUCKET, SECRET_KEY


def secrets_found(stand: Stand) -> list[str]:
    """Where the store's secret key stands and should not."""
    secret = SECRET_KEY.encode()
    places = [*_logs(stand.folder), *_redis(stand.redis), *_store(stand), *_command_lines(stand.mark)]
    return [f"a secret in {place}" for place, text in places if secret in text]


def foreign_listeners(stand: Stand) -> list[str]:
    """Ports of the stand's processes that are open beyond loopback."""
    found = []
    for process in _processes(stand.mark):
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.startswith(("127.", "::1")):
                    found.append(f"{process.name()} listens on {connection.laddr.ip}:{connection.laddr.port}")
    return found


def _processes(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                yield process


def _logs(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in [*folder.glob("*.log"), *folder.glob("*.jsonl"), folder / "run.toml"]:
        yield str(path), path.read_bytes()


def _redis(redis: Redis) -> Iterator[tuple[str, bytes]]:
    for key in redis.scan_iter(count=1000):
        yield f"Redis key {key!r}", redis.dump(key) or b""


def _store(stand: Stand) -> Iterator[tuple[str, bytes]]:
    before = dict(os.environ)
    os.environ.update(stand.seaweed.environment)
    try:
        store = open_store(f"s3://{BUCKET}/chaos")
        for info in store.list(f"{RUN}/"):
            if info.key.endswith(".json"):
                yield info.key, store.get(info.key)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _command_lines(mark: str) -> Iterator[tuple[str, bytes]]:
    for process in _processes(mark):
        with contextlib.suppress(psutil.Error):
            yield f"the command line of {process.name()}", " ".join(process.cmdline()).encode()
