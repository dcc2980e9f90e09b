"""The store of a run on one machine: waited for, and copied from at the end, the manifests after their shards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from eaglefeed.checksum import path_checksum
from eaglefeed.errors import EaglefeedError
from eaglefeed.progress import Progress, byte_size
from eaglefeed.stores import ObjectInfo, Store, open_store

PART_BYTES = 32 << 20
_POLL_SECONDS = 0.2


def copy_run(source_url: str, target_url: str, run: str, environment: Mapping[str, str], quiet: bool = False) -> int:
    """Copy what the target lacks; the number of objects copied."""
    with _environment(environment):
        source, target = open_store(source_url), open_store(target_url)
        objects = sorted(source.list(f"{run}/"), key=lambda info: ("/manifests/" in info.key, info.key))
        copied = 0
        with Progress("copy", len(objects), "objects", quiet) as progress:
            for done, info in enumerate(objects, 1):
                copied += _copy(source, target, info)
                progress.update(done, last=byte_size(info.num_bytes))
    return copied


def wait_for_store(url: str, environment: Mapping[str, str], timeout_seconds: float = 60.0) -> None:
    """Return when the store answers, bucket and all: a server's own health check may pass before its bucket is made.

    Raises EaglefeedError, the store's last word, when it does not in time.
    """
    deadline = time.monotonic() + timeout_seconds
    with _environment(environment):
        store = open_store(url)
        while True:
            try:
                next(iter(store.list("nothing/")), None)
                return
            except EaglefeedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)


def _copy(source: Store, target: Store, info: ObjectInfo) -> bool:
    present = target.head(info.key)
    if present is not None and present.num_bytes == info.num_bytes:
        return False
    with TemporaryDirectory(prefix="eaglefeed-") as folder:
        path = Path(folder) / "object"
        with path.open("wb") as file:
            for start in range(0, info.num_bytes, PART_BYTES):
                file.write(source.get_range(info.key, start, min(start + PART_BYTES, info.num_bytes)))
        target.put_file(info.key, path, path_checksum(path))
    return True


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """boto3 finds endpoint and credentials in the environment alone."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
