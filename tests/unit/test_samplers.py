"""Orders: the same on any number of ranks, before and after a resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglefeed.batch_sampler import BatchSampler, shuffled
from eaglefeed.errors import IdentityMismatch, UsageError
from eaglefeed.samplers import LengthBucketBatchSampler, PackedBatchSampler, ShuffledBatchSampler

lengths = st.lists(st.integers(1, 400), min_size=0, max_size=120)
kinds = st.sampled_from(["shuffled", "bucket", "packed"])
Batches = list[list[int]]


def make(kind: str, sizes: list[int], **options: Any) -> BatchSampler:
    if kind == "shuffled":
        return ShuffledBatchSampler(sizes, 5, **options)
    if kind == "bucket":
        return LengthBucketBatchSampler(sizes, 600, pool_batches=3, **options)
    return PackedBatchSampler(sizes, 400, pool_packs=3, **options)


def interleaved(ranks: list[Batches]) -> Batches:
    """What all ranks read, in the order of their steps."""
    steps = max((len(rank) for rank in ranks), default=0)
    return [rank[step] for step in range(steps) for rank in ranks if step < len(rank)]


@given(lengths, kinds, st.integers(0, 5), st.integers(0, 3), st.booleans())
@settings(deadline=None)
def test_ranks_share_one_order(sizes: list[int], kind: str, seed: int, epoch: int, shuffle: bool) -> None:
    """1, 2 and 4 ranks read the same batches in the same order, each sample once."""
    orders = []
    for world_size in (1, 2, 4):
        ranks = [
            make(kind, sizes, seed=seed, shuffle=shuffle, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for each in ranks:
            each.set_epoch(epoch)
        orders.append(interleaved([list(each) for each in ranks]))
    assert orders[0] == orders[1] == orders[2]
    assert sorted(number for batch in orders[0] for number in batch) == list(range(len(sizes)))


@given(lengths, kinds, st.integers(0, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_a_resume_continues_the_order(sizes: list[int], kind: str, seed: int, data: st.DataObject) -> None:
    """Stopped on 1, 2 or 4 ranks after any step, resumed on any: no sample twice, none missing, the same order."""
    before = data.draw(st.sampled_from([1, 2, 4]))
    after = data.draw(st.sampled_from([1, 2, 4]))
    whole = list(make(kind, sizes, seed=seed, rank=0, world_size=1))
    first = [make(kind, sizes, seed=seed, rank=rank, world_size=before) for rank in range(before)]
    steps = data.draw(st.integers(0, min((len(each) for each in first), default=0)))
    read = interleaved([list(each)[:steps] for each in first])
    state = first[0].state_dict(steps)
    assert all(each.state_dict(steps) == state for each in first)
    second = [make(kind, sizes, seed=seed, rank=rank, world_size=after) for rank in range(after)]
    for each in second:
        each.load_state_dict(state)
    assert sum(len(each) for each in second) == len(whole) - len(read)
    assert read + interleaved([list(each) for each in second]) == whole


@given(st.lists(st.integers(1, 400), min_size=1, max_size=150), st.integers(0, 9))
@settings(deadline=None)
def test_packs_fit(sizes: list[int], seed: int) -> None:
    """No pack is longer than it may be, and at most half of the packs of a pool are less than half full."""
    packs = list(make("packed", sizes, seed=seed, rank=0, world_size=1))
    fill = [sum(sizes[number] for number in pack) for pack in packs]
    assert max(fill) <= 400
    assert sum(value <= 200 for value in fill) <= len(fill) // 2 + 1 + len(sizes) // 3


@given(st.lists(st.integers(1, 900), min_size=1, max_size=150))
@settings(deadline=None)
def test_buckets_fit(sizes: list[int]) -> None:
    """A batch padded to its longest sample keeps to ``max_tokens``, a longer sample alone excepted."""
    for batch in make("bucket", sizes, rank=0, world_size=1):
        longest = max(sizes[number] for number in batch)
        assert len(batch) * longest <= 600 or len(batch) == 1


def test_even_ranks_make_equal_steps() -> None:
    """With ``even`` every rank has the same number of batches, and only the last incomplete round is left out."""
    ranks = [ShuffledBatchSampler([1] * 22, 2, rank=rank, world_size=4, even=True) for rank in range(4)]
    assert [len(list(each)) for each in ranks] == [2, 2, 2, 2]
    assert [len(each) for each in ranks] == [2, 2, 2, 2]


def test_the_shuffle_never_changes() -> None:
    """The permutation is fixed by this file: another one would silently change resumed runs."""
    assert shuffled(10, 0, 0).tolist() == shuffled(10, 0, 0).tolist()
    assert shuffled(8, 42, 3).tolist() == FIXED
    assert sorted(shuffled(1000, 1, 1).tolist()) == list(range(1000))
    assert not np.array_equal(shuffled(1000, 1, 1), shuffled(1000, 1, 2))


FIXED = [2, 4, 0, 3, 7, 6, 1, 5]


def test_a_foreign_state_is_refused() -> None:
    """A state of other samples, another seed or another batch size is refused, naming both."""
    state = ShuffledBatchSampler([3, 4, 5], 2, seed=1).state_dict(1)
    for other in (
        ShuffledBatchSampler([3, 4, 6], 2, seed=1),
        ShuffledBatchSampler([3, 4, 5], 3, seed=1),
        ShuffledBatchSampler([3, 4, 5], 2, seed=2),
        PackedBatchSampler([3, 4, 5], 20, seed=1),
    ):
        with pytest.raises(IdentityMismatch, match="repeat or miss"):
            other.load_state_dict(state)


def test_what_cannot_be_packed_is_named() -> None:
    """A sample longer than a pack is refused with its length and the way out, not cut."""
    with pytest.raises(UsageError, match=r"1 samples are longer than pack_tokens=100 \(the longest has 101\)"):
        PackedBatchSampler([5, 101], 100)
