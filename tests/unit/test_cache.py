"""The disk cache: within its limit, shared by processes, never half a file."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from eaglefeed.cache import DiskCache
from eaglefeed.errors import UsageError


def test_what_was_put_is_given(tmp_path: Path) -> None:
    """Bytes come back as they were; an unknown or dropped name gives None."""
    cache = DiskCache(tmp_path, 1000)
    assert cache.put("a", b"x" * 100)
    assert cache.get("a") == b"x" * 100
    assert cache.get("b") is None
    cache.drop("a")
    cache.drop("a")
    assert cache.get("a") is None and cache.num_bytes() == 0


def test_the_limit_holds_and_the_oldest_goes(tmp_path: Path) -> None:
    """The files never exceed the limit; what was used last stays."""
    cache = DiskCache(tmp_path, 1000)
    for number in range(9):
        cache.put(str(number), bytes(100))
        os.utime(cache._path(str(number)), (number, number))
    cache.get("0")
    cache.put("new", bytes(300))
    assert cache.num_bytes() <= 1000
    assert cache.get("0") is not None and cache.get("new") is not None and cache.get("1") is None


def test_too_large_is_not_kept(tmp_path: Path) -> None:
    """What is larger than the whole limit is passed by, and empties nothing."""
    cache = DiskCache(tmp_path, 1000)
    cache.put("small", bytes(900))
    assert not cache.put("large", bytes(1001))
    assert cache.get("small") is not None


def test_no_limit_is_refused(tmp_path: Path) -> None:
    """A cache of zero bytes is a mistake of the caller, and said so."""
    with pytest.raises(UsageError, match="0 bytes"):
        DiskCache(tmp_path, 0)


def _fill(folder: Path, first: int) -> None:
    cache = DiskCache(folder, 20_000)
    for number in range(first, first + 150):
        name = str(number % 120)
        data = cache.get(name)
        if data is not None and data != name.encode() * 50:
            os._exit(3)
        cache.put(name, name.encode() * 50)


def test_four_processes_share_it(tmp_path: Path) -> None:
    """Four processes at once: no wrong bytes, and the limit holds for all of them together."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fill, args=(tmp_path, 40 * number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    cache = DiskCache(tmp_path, 20_000)
    assert 0 < cache.num_bytes() <= 20_000
    assert int((tmp_path / ".bytes").read_text()) == cache.num_bytes()
