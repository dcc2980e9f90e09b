"""A shard gives back every sample whole, or names the one that is damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglefeed.checksum import path_checksum
from eaglefeed.dump import Dump, DumpHeader
from eaglefeed.errors import CorruptData, IdentityMismatch
from eaglefeed.records import Batch, Sample
from eaglefeed.shard import ShardReader, read_sample
from eaglefeed.shard_writer import WrittenShard, write_shard
from eaglefeed.stores import open_store
from tests.runs import make_dump, make_identity, make_sample

IDENTITY = make_identity(hidden_size=16)
BATCH = Batch("synthetic", tuple(make_sample(number, length) for number, length in enumerate((1, 7, 300, 40))))
DUMPS = {sample.id: make_dump(IDENTITY, BATCH.id, sample) for sample in BATCH.samples}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, WrittenShard]:
    path = tmp_path_factory.mktemp("shard") / "one.safetensors"
    written = write_shard(path, IDENTITY, BATCH, DUMPS)
    return path.read_bytes(), written


def reader_of(data: bytes) -> ShardReader:
    return ShardReader(lambda start, end: data[start:end], len(data), "shard")


def read_all(data: bytes) -> None:
    reader = reader_of(data)
    for sample in reader.samples:
        reader.read(sample)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("encoding", ["lossless", "raw"])
def test_every_sample_returns(tmp_path: Path, encoding: str, threads: int) -> None:
    """Token ids, mask and states of every sample come back, in the batch's order, bit for bit."""
    path = tmp_path / "one.safetensors"
    written = write_shard(path, IDENTITY, BATCH, DUMPS, encoding, threads)
    reader = ShardReader.open(path)
    assert reader.samples == written.samples
    assert [sample.id for sample in written.samples] == [sample.id for sample in BATCH.samples]
    for sample, stored in zip(BATCH.samples, written.samples, strict=True):
        states = reader.read(stored, check_raw=True)
        assert np.array_equal(states.token_ids, sample.token_ids)
        assert np.array_equal(states.loss_mask, sample.loss_mask)
        assert np.array_equal(states.states, DUMPS[sample.id].states)
        assert stored.num_supervised_tokens == sample.num_supervised_tokens


def test_the_checksums_are_those_of_the_file(tmp_path: Path) -> None:
    """The shard's checksum, put together while it was written, is that of the file's bytes; so are the samples'."""
    path = tmp_path / "one.safetensors"
    written = write_shard(path, IDENTITY, BATCH, DUMPS)
    assert path_checksum(path) == written.shard_checksum
    assert path.stat().st_size == written.shard_bytes


def test_equal_dumps_make_equal_bytes(tmp_path: Path) -> None:
    """Threads do not change the file: a batch stored twice has the same bytes."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert write_shard(first, IDENTITY, BATCH, DUMPS, threads=1) == write_shard(
        second, IDENTITY, BATCH, DUMPS, threads=4
    )
    assert first.read_bytes() == second.read_bytes()


def test_the_safetensors_library_opens_it(tmp_path: Path) -> None:
    """Plain safetensors reads names, shapes and the metadata."""
    path = tmp_path / "one.safetensors"
    write_shard(path, IDENTITY, BATCH, DUMPS)
    with safetensors.safe_open(path, "numpy") as file:
        names = set(file.keys())
        assert file.metadata()["format"] == "eaglefeed-shard"
        assert np.array_equal(file.get_tensor(f"{BATCH.samples[2].id}.tokens").view("<u4"), BATCH.samples[2].token_ids)
    assert names == {f"{sample.id}.{kind}" for sample in BATCH.samples for kind in ("tokens", "mask", "states")}


def test_one_range_of_a_store_holds_a_sample(tmp_path: Path, shard: tuple[bytes, WrittenShard]) -> None:
    """The manifest's entry and the run's identity are enough: the shard's header is not read."""
    data, written = shard
    for sample in written.samples:
        states = read_sample(data[sample.start : sample.end], sample, IDENTITY)
        assert np.array_equal(states.states, DUMPS[sample.id].states)


def test_states_go_into_given_memory(shard: tuple[bytes, WrittenShard]) -> None:
    """The caller's array is filled and returned."""
    data, written = shard
    sample = written.samples[2]
    out = np.zeros_like(DUMPS[sample.id].states)
    assert read_sample(data[sample.start : sample.end], sample, IDENTITY, out).states is out
    assert np.array_equal(out, DUMPS[sample.id].states)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_is_found(shard: tuple[bytes, WrittenShard], data: st.DataObject) -> None:
    """Any flipped bit is an error; one in a sample names the sample and the tensor, and the others still read."""
    blob = bytearray(shard[0])
    bit = data.draw(st.integers(0, 8 * len(blob) - 1))
    blob[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptData) as caught:
        read_all(bytes(blob))
    if bit // 8 >= shard[1].samples[0].start:
        sample = next(each for each in shard[1].samples if each.start <= bit // 8 < each.end)
        within = bit // 8 - sample.start
        tensor = "tokens" if within < 4 * sample.num_tokens else "mask" if within < 5 * sample.num_tokens else "states"
        assert f"sample {sample.id}, tensor {tensor}" in str(caught.value)
        reader = reader_of(bytes(blob))
        for other in reader.samples:
            if other.id != sample.id:
                reader.read(other)


def test_every_bit_of_the_header_is_guarded(shard: tuple[bytes, WrittenShard]) -> None:
    """No flipped bit of the header, blanks and length included, goes unseen."""
    data = shard[0]
    for place in range(shard[1].samples[0].start):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(CorruptData):
            reader_of(bytes(damaged))


def test_a_shard_cut_at_any_byte_is_refused(shard: tuple[bytes, WrittenShard]) -> None:
    """No beginning of a shard is taken for a whole one, nor one with bytes behind it."""
    data = shard[0]
    for length in [*range(0, len(data), 11), len(data) - 1]:
        with pytest.raises(CorruptData):
            reader_of(data[:length])
    with pytest.raises(CorruptData):
        reader_of(data + b"\0")


def test_a_newer_version_is_refused_with_its_number(shard: tuple[bytes, WrittenShard]) -> None:
    """The message names the version of a shard that this eaglefeed cannot read."""
    newer = shard[0].replace(b'"format_version":"1"', b'"format_version":"7"', 1)
    with pytest.raises(CorruptData, match="version 7; this eaglefeed reads up to 1"):
        reader_of(newer)


def test_what_is_no_shard_is_refused() -> None:
    """Another safetensors file, a text, nothing."""
    other = b'{"__metadata__":{"format":"pt"}}'
    for data in (b"", b"no shard at all, only text", struct.pack("<Q", len(other)) + other):
        with pytest.raises(CorruptData):
            reader_of(data)


def test_a_dump_that_changed_on_the_disk_is_not_stored(tmp_path: Path) -> None:
    """A bit that flipped in the spool is found while encoding, the sample named, and no file is left."""
    sample = BATCH.samples[2]
    states = DUMPS[sample.id].states.copy()
    states[299, 2, 15] ^= 1
    dumps = {**DUMPS, sample.id: Dump(DUMPS[sample.id].header, sample.token_ids, DUMPS[sample.id].positions, states)}
    with pytest.raises(CorruptData, match=f"sample {sample.id}.*not the bytes that the engine wrote"):
        write_shard(tmp_path / "one", IDENTITY, BATCH, dumps)
    assert not list(tmp_path.iterdir())


def test_another_run_s_dump_is_not_stored(tmp_path: Path) -> None:
    """Other layers, another width or other tokens are refused before a byte is written."""
    sample = BATCH.samples[1]
    dump = DUMPS[sample.id]
    other_layers = DumpHeader(
        **{name: getattr(dump.header, name) for name in DumpHeader.__slots__} | {"layer_ids": (1, 2, 3)}
    )
    for wrong in (
        Dump(other_layers, dump.token_ids, dump.positions, dump.states),
        Dump(dump.header, dump.token_ids[::-1].copy(), dump.positions, dump.states),
        DUMPS[BATCH.samples[2].id],
    ):
        with pytest.raises(CorruptData, match=sample.id):
            write_shard(tmp_path / "one", IDENTITY, BATCH, {sample.id: wrong})
    assert not list(tmp_path.iterdir())


def test_samples_without_a_dump_are_left_out(tmp_path: Path) -> None:
    """A rejected sample's neighbours are stored without it; a shard of nothing is not written."""
    kept = {sample.id: DUMPS[sample.id] for sample in BATCH.samples[1:3]}
    written = write_shard(tmp_path / "one", IDENTITY, BATCH, kept)
    assert [sample.id for sample in written.samples] == list(kept)
    with pytest.raises(ValueError, match="no dump"):
        write_shard(tmp_path / "two", IDENTITY, BATCH, {})


def test_a_header_for_a_thousand_samples_has_room(tmp_path: Path) -> None:
    """The room kept for the header is enough for many samples, and not much more than it needs."""
    batch = Batch("synthetic", tuple(make_sample(number, 2 + number % 5) for number in range(1000)))
    dumps = {sample.id: make_dump(IDENTITY, batch.id, sample) for sample in batch.samples}
    write_shard(tmp_path / "one", IDENTITY, batch, dumps)
    reader = ShardReader.open(tmp_path / "one")
    header = (tmp_path / "one").read_bytes()[: reader.header_bytes]
    assert len(reader.samples) == 1000
    assert len(header.rstrip(b" ")) > 0.7 * len(header)


def test_it_is_read_out_of_a_store(tmp_path: Path, shard: tuple[bytes, WrittenShard]) -> None:
    """The same through a store's ranges; a shard that is not there is a FileNotFoundError."""
    store = open_store(str(tmp_path))
    assert store.create("run/shards/a.safetensors", shard[0])
    assert len(list(ShardReader.from_store(store, "run/shards/a.safetensors"))) == 4
    with pytest.raises(FileNotFoundError):
        ShardReader.from_store(store, "run/shards/b.safetensors")


def test_a_sample_of_another_run_is_not_decoded(shard: tuple[bytes, WrittenShard]) -> None:
    """An identity of another width or dtype does not fit, even where the checksum does."""
    data, written = shard
    sample = written.samples[2]
    with pytest.raises(CorruptData, match="the run says"):
        read_sample(data[sample.start : sample.end], sample, make_identity(hidden_size=8))
    with pytest.raises(IdentityMismatch):
        IDENTITY.require_same(make_identity(hidden_size=8), "here")


def test_a_long_sample_is_written_a_few_chunks_at_a_time(tmp_path: Path) -> None:
    """Memory beyond the dump's own pages stays far below the sample's size."""
    import tracemalloc

    length = 20_000
    sample = Sample(np.arange(length, dtype=np.uint32) % 500, np.ones(length, np.uint8))
    identity = make_identity(hidden_size=256)
    batch = Batch("synthetic", (sample,))
    dump = make_dump(identity, batch.id, sample)
    tracemalloc.start()
    try:
        write_shard(tmp_path / "one", identity, batch, {sample.id: dump}, threads=2)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 0.25 * dump.states.nbytes
