"""The index: what manifests say, in one file, each sample once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglefeed.errors import CorruptData
from eaglefeed.folding import fold, merge
from eaglefeed.index import RunIndex
from eaglefeed.manifest import Manifest, RejectedSampleRecord, StoredSample
from eaglefeed.records import batch_id
from eaglefeed.selection import select_rows

COLUMNS = ("ids", "num_tokens", "num_supervised_tokens", "shards", "starts", "ends", "raw_checksums")


def make_manifest(numbers: list[int], run: str = "run") -> Manifest:
    ids = [f"{number:032x}" for number in numbers]
    samples = tuple(
        StoredSample(each, 10 + number, 5, 10 + number, 100 * place, 100 * place + 90, "crc32:1", "crc32:2")
        for place, (number, each) in enumerate(zip(numbers, ids, strict=True))
    )
    rejected = () if samples else (RejectedSampleRecord("f" * 32, 3, 2, "short-dump", ""),)
    return Manifest(
        run, batch_id(ids or ["none"]), "shard" if samples else "", 1000, "crc32:0", 5000, samples, rejected
    )


batches = st.lists(st.lists(st.integers(0, 40), max_size=6, unique=True), max_size=8, unique_by=tuple)


def same(first: RunIndex, second: RunIndex) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in (*COLUMNS, "batch_ids"))


@given(batches, st.randoms())
@settings(deadline=None)
def test_the_order_of_manifests_does_not_matter(groups: list[list[int]], random: object) -> None:
    """Folded in any order, or the second half onto the first, the index is the same; each sample is in it once."""
    manifests = [make_manifest(group) for group in groups]
    index = fold("run", manifests)
    random.shuffle(manifests)  # type: ignore[attr-defined]
    half = len(manifests) // 2
    assert same(index, fold("run", manifests))
    assert same(index, fold("run", manifests[half:], fold("run", manifests[:half])))
    assert sorted({number for group in groups for number in group}) == sorted(
        int(index.sample_id(row), 16) for row in range(len(index))
    )


@given(batches)
@settings(deadline=None)
def test_the_file_holds_the_index(groups: list[list[int]]) -> None:
    """Written and read, every column, count and batch id is what it was."""
    index = fold("run", [make_manifest(group) for group in groups])
    again = RunIndex.from_bytes(index.to_bytes(), "there")
    assert same(index, again)
    assert (again.num_rejected, again.num_manifests) == (index.num_rejected, index.num_manifests)
    assert again.known_batch_ids() == index.known_batch_ids() == {make_manifest(group).batch_id for group in groups}


@given(st.integers(0, 600), st.integers(0, 7))
@settings(deadline=None)
def test_a_damaged_file_is_refused(place: int, bit: int) -> None:
    """A flipped bit gives CorruptData or, in a value, another value: never another exception."""
    data = bytearray(fold("run", [make_manifest([1, 2, 3])]).to_bytes())
    data[place % len(data)] ^= 1 << bit
    try:
        RunIndex.from_bytes(bytes(data), "there")
    except CorruptData as error:
        assert "there" in str(error)


def test_a_sample_in_two_manifests_is_kept_from_the_smaller_batch_id() -> None:
    """Two nodes stored one sample: which copy counts depends on nothing but the batch ids."""
    first, second = sorted([make_manifest([1, 2]), make_manifest([2, 3])], key=lambda each: each.batch_id)
    index = merge(fold("run", [second]), fold("run", [first]))
    row = int(index.rows_of([f"{2:032x}"])[0])
    assert index.batch_id(int(index.shards[row])) == first.batch_id
    assert len(index) == 3


def test_another_run_s_manifest_is_refused() -> None:
    """Two runs are not mixed into one index."""
    with pytest.raises(CorruptData, match="belongs to run 'other', not 'run'"):
        fold("run", [make_manifest([1], run="other")])


def test_ids_are_found() -> None:
    """Rows of ids come in the ids' order; an id that is not there is named."""
    index = fold("run", [make_manifest([5, 6, 7]), make_manifest([1, 300])])
    wanted = [f"{number:032x}" for number in (300, 5, 1)]
    assert [index.sample_id(row) for row in index.rows_of(wanted)] == wanted
    with pytest.raises(KeyError, match=f"{9:032x}"):
        index.rows_of([f"{9:032x}"])


def test_select(tmp_path: Path) -> None:
    """Conditions apply from left to right: lengths, ids, every, first."""
    index = fold("run", [make_manifest(list(range(20)))])
    tokens = index.num_tokens
    assert tokens[select_rows(index, "tokens>=15,tokens<20")].tolist() == [15, 16, 17, 18, 19]
    assert tokens[select_rows(index, "every=5+2, first=2")].tolist() == [12, 17]
    listed = tmp_path / "ids"
    listed.write_text(f"{7:032x}\n{3:032x}\n")
    assert tokens[select_rows(index, f"ids=@{listed}")].tolist() == [17, 13]
    assert len(select_rows(index, "shuffle=3")) == 20
