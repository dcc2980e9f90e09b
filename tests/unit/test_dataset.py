"""A run as a data set: what comes back is what was stored, and what is not whole is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import eaglefeed
from eaglefeed.dataset import Dataset
from eaglefeed.errors import CorruptData, UsageError
from eaglefeed.index import RunIndex, index_table_key
from eaglefeed.ledger import read_index
from eaglefeed.manifest import manifest_key, shard_key
from eaglefeed.norm import load_norm
from eaglefeed.stores import open_store
from tests.runs import make_dump, make_identity, make_run, make_sample, write_batch

LENGTHS = [10, 33, 200, 5, 70, 128, 64, 300, 17, 90, 41]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    make_run(str(folder / "store"), folder, LENGTHS)
    return str(folder / "store")


@pytest.fixture
def own_url(tmp_path: Path) -> str:
    """A run that the test may damage."""
    make_run(str(tmp_path / "store"), tmp_path, LENGTHS[:6], samples_per_shard=2)
    return str(tmp_path / "store")


def expected(dataset: Dataset) -> dict[str, torch.Tensor]:
    """The states of every sample by its id, bfloat16 ``[T, K+1, H]``, made anew."""
    samples = [make_sample(number, length) for number, length in enumerate(LENGTHS)]
    dumps = (make_dump(dataset.identity, "0" * 32, sample) for sample in samples)
    return {dump.header.sample_id: torch.from_numpy(dump.states.view(np.int16)).view(torch.bfloat16) for dump in dumps}


def test_a_sample_is_what_was_stored(url: str) -> None:
    """Ids, mask, captured layers and final state of every sample come back bit for bit, aux flat on the last axis."""
    run = eaglefeed.open(url)
    states = expected(run)
    assert len(run) == len(LENGTHS)
    for number in range(len(run)):
        sample = run[number]
        wanted = states[sample["sample_id"]]
        assert torch.equal(sample["aux"], wanted[:, :-1].reshape(len(wanted), -1))
        assert torch.equal(sample["final"], wanted[:, -1])
        assert sample["token_ids"].dtype == sample["loss_mask"].dtype == torch.int64
        assert len(sample["token_ids"]) == run.lengths[number] == len(wanted)
        assert sample["loss_mask"].sum() == len(wanted) - len(wanted) // 2
    assert (run.layer_ids, run.layer_convention) == ((1, 5, 8), "output_of_layer")


def test_stacked_and_post_norm(url: str) -> None:
    """``aux="stacked"`` gives [T, K, H]; ``final="post_norm"`` the run's own norm of the stored state."""
    stored, run = eaglefeed.open(url), eaglefeed.open(url, "synthetic", aux="stacked", final="post_norm")
    assert run[2]["aux"].shape == (run.lengths[2], 3, 64)
    assert torch.equal(run[2]["aux"].flatten(1), stored[2]["aux"])
    norm = load_norm(open_store(url), "synthetic")
    assert norm is not None
    assert torch.equal(run[2]["final"], norm.apply(stored[2]["final"]))
    assert run[2]["final_state"] == "post_norm"


def test_the_run_s_own_folder_is_a_url(url: str) -> None:
    """A run opens by the store and its name, or by its own folder."""
    assert eaglefeed.open(f"{url}/synthetic").lengths.tolist() == eaglefeed.open(url, "synthetic").lengths.tolist()


def test_no_run(url: str, tmp_path: Path) -> None:
    """A folder without a run, and a name that is not there, are named."""
    with pytest.raises(UsageError, match="no run there"):
        eaglefeed.open(str(tmp_path))
    with pytest.raises(UsageError, match="no run 'other' there"):
        eaglefeed.open(url, "other")


def test_several_runs_are_listed(own_url: str, tmp_path: Path) -> None:
    """A store of two runs is not guessed at."""
    make_run(own_url, tmp_path, [7], identity=make_identity("second"))
    with pytest.raises(UsageError, match="second, synthetic"):
        eaglefeed.open(own_url)
    assert len(eaglefeed.open(own_url, "second")) == 1


def test_selection(url: str) -> None:
    """Lengths, ids and predicates select without a shard being read; ids give their order."""
    run = eaglefeed.open(url)
    long = run.select(min_tokens=65, max_tokens=200)
    assert sorted(long.lengths.tolist()) == [70, 90, 128, 200]
    ids = [run.sample_id(7), run.sample_id(1)]
    assert [run.select(ids=ids).sample_id(number) for number in (0, 1)] == ids
    assert run.select(where=lambda index: index.num_supervised_tokens == 5).lengths.tolist() == [10]
    assert sorted(run.select("tokens<40,tokens>10").lengths.tolist()) == [17, 33]
    with pytest.raises(UsageError, match="is not in run"):
        run.select(ids=["0" * 32])


def test_neighbours_are_one_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of one shard, asked for together, cost one range GET; one sample alone costs one."""
    run = eaglefeed.open(url)
    requests: list[tuple[int, int]] = []
    store = run.reader.store()
    get_range = store.get_range

    def counted(key: str, start: int, end: int) -> bytes:
        requests.append((start, end))
        return get_range(key, start, end)

    monkeypatch.setattr(store, "get_range", counted)
    shard = np.flatnonzero(run.index.shards == 0)
    together = run.__getitems__(shard.tolist())
    assert len(requests) == 1 and len(together) == 4
    assert torch.equal(run[int(shard[2])]["aux"], together[2]["aux"])
    assert len(requests) == 2


def test_missing_shards_are_named(own_url: str) -> None:
    """A shard that is gone makes the run incomplete: refused with its batch id, or left out when told."""
    run = eaglefeed.open(own_url)
    batch = run.index.batch_id(1)
    open_store(own_url).delete(shard_key("synthetic", batch))
    with pytest.raises(UsageError, match=f"1 shards missing .{batch}.*allow_incomplete"):
        eaglefeed.open(own_url)
    rest = eaglefeed.open(own_url, allow_incomplete=True)
    assert len(rest) == 4 and rest.gaps.missing_shards == (batch,)
    assert len(list(rest)) == 4


def test_a_closed_run_is_complete_or_refused(own_url: str) -> None:
    """A closed run says so; one with fewer samples than when it was closed is refused with the number."""
    assert not eaglefeed.open(own_url).is_closed
    store = open_store(own_url)
    store.create("synthetic/closed.json", b'{"run": "synthetic", "stored": 6}')
    assert eaglefeed.open(own_url).is_closed
    index = eaglefeed.open(own_url).index
    store.delete(manifest_key("synthetic", index.batch_id(0)))
    with pytest.raises(UsageError, match="2 samples fewer than when the run was closed"):
        eaglefeed.open(own_url)


def test_a_cut_shard_is_named(own_url: str) -> None:
    """A shard shorter than its manifest says is found without being read."""
    path = next((Path(own_url) / "synthetic/shards").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=f"1 shards of another size.*{path.stem}"):
        eaglefeed.open(own_url)


def test_a_mixed_run_is_refused(own_url: str, tmp_path: Path) -> None:
    """A manifest of another run, or one with short samples, in a run's folder is refused by name."""
    other = make_identity("other")
    manifest = write_batch(open_store(str(tmp_path / "second")), other, [make_sample(77, 9)], tmp_path)
    open_store(own_url).create(manifest_key("synthetic", manifest.batch_id), manifest.to_json())
    with pytest.raises(CorruptData, match="belongs to run 'other', not 'synthetic'"):
        eaglefeed.open(own_url)


def test_a_shard_of_another_identity_is_refused(own_url: str, tmp_path: Path) -> None:
    """States of another shape than run.json says are refused when they are read, naming the sample."""
    narrow = make_identity(hidden_size=32)
    write_batch(open_store(own_url), narrow, [make_sample(78, 9)], tmp_path)
    run = eaglefeed.open(own_url)
    (number,) = [number for number in range(len(run)) if run.lengths[number] == 9]
    with pytest.raises(CorruptData, match=run.sample_id(number)):
        run[number]


def test_younger_manifests_are_folded_in(own_url: str, tmp_path: Path) -> None:
    """An index that is older than some manifests costs a GET for each of them, not their samples."""
    store = open_store(own_url)
    index, _ = read_index(store, "synthetic")
    store.create(index_table_key("synthetic"), index.to_bytes())
    write_batch(store, make_identity(), [make_sample(50, 21)], tmp_path)
    run = eaglefeed.open(own_url)
    assert 21 in run.lengths and len(run) == 7
    assert RunIndex.from_bytes(store.get(index_table_key("synthetic")), "").num_manifests == 3


def test_damage_is_named(own_url: str) -> None:
    """One flipped bit in a shard: CorruptData with the shard, the sample and the tensor; other samples still read."""
    run = eaglefeed.open(own_url)
    path = Path(own_url) / run.index.shard_key(int(run.index.shards[0]))
    data = bytearray(path.read_bytes())
    data[int(run.index.ends[0]) - 9] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptData, match=f"{path.stem}.*sample {run.sample_id(0)}, tensor states"):
        run[0]
    assert len(run[1]["token_ids"]) == run.lengths[1]


def test_a_damaged_cache_is_fetched_anew(own_url: str, tmp_path: Path) -> None:
    """What the disk cache kept damaged is dropped and read from the store, and the sample is right."""
    run = eaglefeed.open(own_url, cache=tmp_path / "cache", threads=1)
    right = run[0]["aux"]
    (kept,) = (tmp_path / "cache").glob("??/*")
    kept.write_bytes(b"\0" * kept.stat().st_size)
    assert torch.equal(run[0]["aux"], right)
    assert torch.equal(run[0]["aux"], right)


def test_tokens_alone(url: str) -> None:
    """Token ids and masks come without the states, and a wrong id is found by the sample's id."""
    run = eaglefeed.open(url)
    for number, (token_ids, mask) in enumerate(run.tokens(range(len(run)))):
        assert token_ids.tolist() == run[number]["token_ids"].tolist()
        assert mask.tolist() == run[number]["loss_mask"].tolist()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_loader_with_workers(url: str, context: str) -> None:
    """Two worker processes, forked or spawned, give every sample once."""
    run = eaglefeed.open(url)
    run[0]  # the parent's store and threads exist before the workers do
    loader: Any = DataLoader(
        run,  # type: ignore[arg-type]
        batch_size=3,
        num_workers=2,
        multiprocessing_context=context,
        collate_fn=list,
    )
    ids = [sample["sample_id"] for batch in loader for sample in batch]
    assert ids == [run.sample_id(number) for number in range(len(run))]


def test_torch_s_own_distributed_sampler(url: str) -> None:
    """``DistributedSampler`` takes the data set: two ranks read all of it."""
    run: Any = eaglefeed.open(url)
    ranks = [DistributedSampler(run, 2, rank, shuffle=True, seed=3) for rank in (0, 1)]
    assert sorted({number for rank in ranks for number in rank}) == list(range(len(run)))


def test_a_data_set_can_be_pickled(url: str) -> None:
    """Pickled, it opens its own connections and reads the same."""
    run = eaglefeed.open(url, cache=None)
    again = pickle.loads(pickle.dumps(run))  # noqa: S301  # our own bytes, as spawn does
    assert torch.equal(again[1]["aux"], run[1]["aux"])


def test_a_loader_resumes_mid_epoch(url: str) -> None:
    """With workers drawing ahead, the state after three batches continues with the fourth."""
    run = eaglefeed.open(url)

    def loader() -> eaglefeed.Loader:
        sampler = eaglefeed.ShuffledBatchSampler(run.lengths, 2, seed=4)
        return eaglefeed.Loader(run, sampler, num_workers=2, prefetch_factor=4)

    def ids(batches: Iterator[Any]) -> list[str]:
        return [sample["sample_id"] for batch in batches for sample in batch]

    whole = ids(iter(loader()))
    first = loader()
    batches = iter(first)
    read = [next(batches) for _ in range(3)]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert ids(iter(read)) + ids(iter(second)) == whole
    assert len(set(whole)) == len(run)


def test_the_stream_reads_shard_by_shard(url: str) -> None:
    """The iterable view gives every sample once, neighbours together, the same with workers and without."""
    run = eaglefeed.open(url)
    stream = eaglefeed.ShardStream(run, batch_size=2, seed=1)
    batches = [[sample["sample_id"] for sample in batch] for batch in stream]
    rows = run.index.rows_of([each for batch in batches for each in batch])
    assert sorted(rows.tolist()) == list(range(len(run)))
    shards = [set(run.index.shards[run.index.rows_of(batch)].tolist()) for batch in batches]
    assert all(len(each) == 1 for each in shards)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
    assert [[sample["sample_id"] for sample in batch] for batch in loader] == batches


def test_prefetch_keeps_order_and_limit(url: str) -> None:
    """Batches read ahead come in order, also when the limit lets only one through at a time."""
    run = eaglefeed.open(url)
    batches = [[0, 1], [5], [2, 3, 4], [6, 7]]
    for limit in (1, 10_000_000):
        given = [
            [sample["sample_id"] for sample in batch] for batch in eaglefeed.prefetch(run, batches, max_bytes=limit)
        ]
        assert given == [[run.sample_id(number) for number in batch] for batch in batches]


def test_without_torch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is not installed, samples are numpy arrays with the same values, widened to float32."""
    with_torch = eaglefeed.open(url, final="post_norm")[1]
    monkeypatch.setattr("eaglefeed.form.has_torch", lambda: False)
    sample = eaglefeed.open(url, final="post_norm")[1]
    assert sample["aux"].dtype == np.float32 and sample["token_ids"].dtype == np.int64
    assert np.array_equal(sample["aux"], with_torch["aux"].float().numpy())
    difference = np.abs(sample["final"] - with_torch["final"].float().numpy())
    assert (difference <= np.abs(sample["final"]) * 2**-7).all()
