"""A dump is written whole or not at all, in one piece or in many."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglefeed.dump import DumpWriter, check_rows, read_dump, read_header, write_dump
from eaglefeed.errors import CorruptData
from tests.runs import make_dump, make_identity, make_sample

IDENTITY = make_identity()
SAMPLE = make_sample(1, 37)
BATCH = "b" * 32


def empty_header() -> object:
    return replace(make_dump(IDENTITY, BATCH, SAMPLE).header, token_digest="", rows_crc32=0)


@given(cuts=st.lists(st.integers(0, 37), max_size=6))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pieces_make_the_same_file_as_one(tmp_path: Path, cuts: list[int]) -> None:
    """However a prompt is cut into chunks, the file has the same header, ids, positions and rows."""
    whole = make_dump(IDENTITY, BATCH, SAMPLE)
    writer = DumpWriter(tmp_path / "pieces.dump", empty_header())  # type: ignore[arg-type]
    edges = sorted({0, 37, *cuts})
    for start, end in itertools.pairwise(edges):
        rows = slice(start, end)
        writer.append(whole.token_ids[rows], whole.positions[rows], whole.states[rows])
    header = writer.finish()
    assert header == whole.header
    assert header.rows_crc32 == zlib.crc32(whole.states.data)
    found = read_dump(tmp_path / "pieces.dump")
    assert check_rows(found)
    assert np.array_equal(found.states, whole.states)
    assert np.array_equal(found.token_ids, whole.token_ids)
    assert np.array_equal(found.positions, whole.positions)


def test_an_unfinished_dump_cannot_be_seen(tmp_path: Path) -> None:
    """Until ``finish`` there is no file under the dump's name, and after ``discard`` there is none at all."""
    whole, path = make_dump(IDENTITY, BATCH, SAMPLE), tmp_path / "x.dump"
    writer = DumpWriter(path, empty_header())  # type: ignore[arg-type]
    writer.append(whole.token_ids[:5], whole.positions[:5], whole.states[:5])
    assert not path.exists()
    writer.discard()
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Writing to a full device raises, and no dump appears."""
    whole, path = make_dump(IDENTITY, BATCH, SAMPLE), tmp_path / "x.dump"
    (tmp_path / "x.dump.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_dump(path, whole.header, whole.token_ids, whole.positions, whole.states)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [0, 10, 15, 200, 4095, 4097, -1])
def test_a_dump_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    """Cut in the magic, the header, the ids or the rows: refused, with the path."""
    whole, path = make_dump(IDENTITY, BATCH, SAMPLE), tmp_path / "x.dump"
    write_dump(path, whole.header, whole.token_ids, whole.positions, whole.states)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptData, match=r"x\.dump"):
        read_header(path)
