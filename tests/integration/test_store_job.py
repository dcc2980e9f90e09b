"""A batch's way from the spool into the store: stored once, whole, whatever happens on the way."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest

from config import counters, names, queues
from config.environment import node_name
from eaglefeed.dump import read_dump, write_dump
from eaglefeed.errors import CorruptData, DumpsSpoilt, EnvironmentFault, IdentityMismatch, StoreUnavailable
from eaglefeed.manifest import (
    Manifest,
    RejectedSampleRecord,
    manifest_key,
    manifest_prefix,
    norm_key,
    run_key,
    shard_key,
)
from eaglefeed.records import Batch
from eaglefeed.shard import ShardReader
from storage import jobs, patience
from storage.node import this_node
from tests.fault_proxy import FaultProxy
from tests.runs import norm_bytes
from tests.services import BUCKET, Seaweed, wait_for
from tests.storage_home import StorageHome


@pytest.fixture
def run() -> str:
    return f"run-{secrets.token_hex(4)}"


@pytest.fixture
def home(tmp_path: Path, run: str, valkey: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageHome]:
    """A node with a directory store, its job functions in this process."""
    made = StorageHome.make(tmp_path, run, valkey)
    with in_this_process(made, monkeypatch):
        yield made


@pytest.fixture
def s3_home(
    tmp_path: Path, run: str, valkey: str, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageHome]:
    """A node whose store is the S3 server."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    made = StorageHome.make(tmp_path, run, valkey, f"s3://{BUCKET}/runs", store_settings="part_bytes = 5_242_880")
    with in_this_process(made, monkeypatch):
        yield made


class in_this_process:  # reads as a phrase
    """The node's environment and caches, for job functions called here."""

    def __init__(self, home: StorageHome, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.monkeypatch = home, monkeypatch

    def __enter__(self) -> None:
        for name, value in self.home.environment.items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.05)
        self.monkeypatch.setattr(patience, "LONGEST_PAUSE_SECONDS", 0.5)
        self._forget()

    def __exit__(self, *_: object) -> None:
        if this_node.cache_info().currsize:
            jobs.lookahead().close()
            this_node().redis.close()
        self._forget()

    def _forget(self) -> None:
        patience.stop_requested.clear()
        this_node.cache_clear()
        jobs.lookahead.cache_clear()


def rejected_of(batch: Batch, number: int) -> RejectedSampleRecord:
    sample = batch.samples[number]
    return RejectedSampleRecord(sample.id, sample.num_tokens, sample.num_tokens - 5, "short-dump", "5 rows missing")


def manifest_of(home: StorageHome, batch: Batch) -> Manifest:
    return Manifest.from_json(home.store().get(manifest_key(home.run, batch.id)))


def assert_stored_whole(home: StorageHome, batch: Batch) -> Manifest:
    """The manifest's samples decode to the states that were dumped, and the shard's checksum is the store's."""
    manifest, store = manifest_of(home, batch), home.store()
    assert store.checksum(manifest.shard) == manifest.shard_checksum
    reader = ShardReader.from_store(store, manifest.shard)
    assert reader.samples == manifest.samples
    for sample in manifest.samples:
        reader.read(sample, check_raw=True)
    return manifest


@pytest.mark.parametrize("kind", ["home", "s3_home"])
def test_a_batch_is_stored_once_however_often_its_job_runs(kind: str, request: pytest.FixtureRequest) -> None:
    """Shard, manifest and counters are there once; the dumps are gone; a second run changes nothing."""
    home: StorageHome = request.getfixturevalue(kind)
    batch = home.batch([3, 300, 40])
    dumps, reject = home.write_dumps(batch, batch.samples[:2]), rejected_of(batch, 2)
    norm = norm_bytes(64)
    (home.spool_folder / "final_norm.safetensors").write_bytes(norm)
    for _ in range(2):
        jobs.store_batch(batch.to_payload(), dumps, [vars_of(reject)], {"e": 1})
    manifest = assert_stored_whole(home, batch)
    assert [sample.id for sample in manifest.samples] == [sample.id for sample in batch.samples[:2]]
    assert manifest.rejected == (reject,)
    assert manifest.node == home.node
    assert home.waiting() == ["final_norm.safetensors"]
    assert home.store().get(norm_key(home.run)) == norm
    found = counters.read(this_node().redis, home.run)
    assert (found["stored"], found["rejected"], found["rejected:short-dump"]) == (2, 1, 1)
    assert (found["tokens"], found["stored_bytes"]) == (303, manifest.shard_bytes)


def vars_of(record: RejectedSampleRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in RejectedSampleRecord.__slots__}


def test_a_lossy_run_says_so_and_stores_no_less(
    tmp_path: Path, run: str, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """encoding = "fp8_per_token": half the bytes, every row there, and the shard names the loss."""
    home = StorageHome.make(tmp_path, run, valkey, store_settings='encoding = "fp8_per_token"')
    with in_this_process(home, monkeypatch):
        batch = home.batch([300, 40])
        home.announce(batch)
        jobs.store_batch(batch.to_payload(), home.write_dumps(batch))
        manifest = manifest_of(home, batch)
        assert manifest.raw_bytes / manifest.shard_bytes > 1.8
        shard = home.store().get(manifest.shard)
        assert b'"encoding":"fp8_per_token","lossy":"yes"' in shard
        audit = home.eaglefeed("audit", "--deep", "--json")
        assert (audit.returncode, json.loads(audit.stdout)["stored"]) == (0, 2)


def test_a_batch_of_rejects_has_a_manifest_and_no_shard(home: StorageHome) -> None:
    """Nothing to store is an outcome too: the samples are in the ledger, with their reasons."""
    batch = home.batch([5, 6])
    jobs.store_batch(batch.to_payload(), {}, [vars_of(rejected_of(batch, number)) for number in (0, 1)])
    manifest = manifest_of(home, batch)
    assert (manifest.shard, manifest.shard_bytes, manifest.samples, len(manifest.rejected)) == ("", 0, (), 2)
    assert list(home.store().list(f"{home.run}/shards/")) == []
    assert counters.read(this_node().redis, home.run)["rejected"] == 2


def test_a_crash_before_counting_is_made_good(home: StorageHome) -> None:
    """A manifest without a count, and dumps not yet deleted: the next run counts and deletes, and stores nothing."""
    batch = home.batch([30, 40])
    dumps = home.write_dumps(batch)
    node = this_node()
    jobs.commit(node, batch, dumps, [], {})
    before = home.store().get(manifest_key(home.run, batch.id))
    assert counters.read(node.redis, home.run).get("stored") is None
    jobs.store_batch(batch.to_payload(), dumps)
    assert home.store().get(manifest_key(home.run, batch.id)) == before
    assert counters.read(node.redis, home.run)["stored"] == 2
    assert home.waiting() == []


def test_a_shard_without_manifest_is_committed_by_the_next_run(home: StorageHome) -> None:
    """A crash between upload and commit: equal dumps make equal bytes, and the shard in the store is taken."""
    batch = home.batch([30, 40])
    dumps = home.write_dumps(batch)
    jobs.store_shard(this_node(), batch, dumps)
    assert home.store().head(manifest_key(home.run, batch.id)) is None
    assert len(home.waiting()) == 2
    jobs.store_batch(batch.to_payload(), dumps)
    assert_stored_whole(home, batch)


def test_another_node_s_shard_is_taken_over_and_not_overwritten(
    home: StorageHome, tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines give other last bits: the second node commits the first one's shard, as it is."""
    batch = home.batch([30, 40])
    jobs.store_shard(this_node(), batch, home.write_dumps(batch))
    first = home.store().get(shard_key(home.run, batch.id))
    other = StorageHome.make(tmp_path, home.run, valkey, node="n2")
    dumps = other.write_dumps(batch)
    for name in dumps.values():
        change_last_bits(other.spool_folder / name)
    with in_this_process(other, monkeypatch):
        jobs.store_batch(batch.to_payload(), dumps)
    assert home.store().get(shard_key(home.run, batch.id)) == first
    assert_stored_whole(home, batch)
    assert other.waiting() == []


def change_last_bits(path: Path) -> None:
    """The same dump from another engine: one bit of every eighth value differs, the checksum fits."""
    dump = read_dump(path)
    states = np.array(dump.states)
    states[:, :, ::8] ^= 1
    header = replace(dump.header, rows_crc32=zlib.crc32(states.data))
    write_dump(path, header, dump.token_ids, dump.positions, states)


@pytest.mark.parametrize("damage", ["flip", "gone", "cut", "other"])
def test_spoilt_dumps_are_not_stored(home: StorageHome, damage: str) -> None:
    """A dump that changed, went, was cut or is another sample's sends the batch back; nothing is published."""
    batch = home.batch([30, 40])
    dumps = home.write_dumps(batch)
    path = home.spool_folder / dumps[batch.samples[1].id]
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-7] ^= 4
    if damage == "other":
        data = bytearray((home.spool_folder / dumps[batch.samples[0].id]).read_bytes())
    path.write_bytes(data[:-100] if damage == "cut" else data)
    if damage == "gone":
        path.unlink()
    with pytest.raises(DumpsSpoilt, match=batch.samples[1].id):
        jobs.store_batch(batch.to_payload(), dumps)
    assert list(home.store().list(manifest_prefix(home.run))) == []
    assert list(home.store().list(f"{home.run}/shards/")) == []
    assert (home.spool_folder / dumps[batch.samples[0].id]).exists()


def test_a_job_that_is_not_whole_is_refused(home: StorageHome) -> None:
    """Every sample is a dump or a reject, exactly once; a dump lies in the run's own folder."""
    batch = home.batch([30, 40])
    dumps = home.write_dumps(batch)
    lacking = {batch.samples[0].id: dumps[batch.samples[0].id]}
    outside = {**dumps, batch.samples[0].id: "../other/x.dump"}
    deeper = {**dumps, batch.samples[0].id: "r1/../../other/x.dump"}
    for wrong, rejected in ((lacking, []), (dumps, [vars_of(rejected_of(batch, 0))]), (outside, []), (deeper, [])):
        with pytest.raises(CorruptData, match=batch.id):
            jobs.store_batch(batch.to_payload(), wrong, rejected)
    foreign = Batch("another-run", batch.samples)
    with pytest.raises(CorruptData, match="another-run"):
        jobs.store_batch(foreign.to_payload(), dumps)
    assert len(home.waiting()) == 2


def test_dumps_of_several_engines_are_one_shard(home: StorageHome) -> None:
    """A node's replicas have folders of their own; what is stored is forgotten in each."""
    batch = home.batch([30, 40, 50])
    dumps = home.write_dumps(batch, batch.samples[:1])
    for replica, sample in enumerate(batch.samples[1:]):
        dumps |= home.write_dumps(batch, [sample], replica)
    assert sorted(Path(name).parent.name for name in dumps.values()) == ["", "r0", "r1"]
    jobs.store_batch(batch.to_payload(), dumps)
    manifest = Manifest.from_json(home.store().get(manifest_key(home.run, batch.id)))
    assert {sample.id for sample in manifest.samples} == {sample.id for sample in batch.samples}
    assert not list(home.spool_folder.rglob("*.dump"))


def test_a_run_of_another_identity_is_refused(home: StorageHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose model differs from the store's run.json does not start, and the field is named."""
    this_node()
    config = json.loads((home.folder / "model/config.json").read_text())
    (home.folder / "model/config.json").write_text(json.dumps({**config, "hidden_size": 32}))
    with in_this_process(home, monkeypatch), pytest.raises(IdentityMismatch, match="hidden_size: 64 there, 32 here"):
        this_node()
    assert b'"hidden_size": 64' in home.store().get(run_key(home.run))


def test_eight_nodes_racing_on_one_batch_make_one_manifest(
    tmp_path: Path, run: str, valkey: str, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight workers, each with dumps of its own engine: one manifest, one shard that it fits, one count."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    homes = [StorageHome.make(tmp_path, run, valkey, f"s3://{BUCKET}/race", node=f"n{number}") for number in range(8)]
    batch = homes[0].batch([200, 300, 400])
    homes[0].announce(batch)
    for number, home in enumerate(homes):
        dumps = home.write_dumps(batch)
        if number % 2:
            for name in dumps.values():
                change_last_bits(home.spool_folder / name)
        home.enqueue(batch, dumps) if number == 0 else _enqueue_as(home, batch, dumps, f"store-{batch.id}-{number}")
    workers = [home.start_worker("--burst") for home in homes]
    assert [worker.wait(120) for worker in workers] == [0] * 8
    assert len(list(homes[0].store().list(manifest_prefix(run)))) == 1
    assert len(list(homes[0].store().list(f"{run}/shards/"))) == 1
    assert_stored_whole(homes[0], batch)
    assert [home.waiting() for home in homes] == [[]] * 8
    redis = homes[0].redis
    assert counters.read(redis, run)["stored"] == 3
    redis.close()
    audit = homes[0].eaglefeed("audit", "--deep", "--json")
    assert audit.returncode == 0, audit.stderr


def _enqueue_as(home: StorageHome, batch: Batch, dumps: dict[str, str], job_id: str) -> None:
    redis = home.redis
    queues.store_queue(redis, home.node).enqueue_call(
        names.STORE_JOB, kwargs={"payload": batch.to_payload(), "dumps": dumps}, job_id=job_id, timeout=-1, result_ttl=0
    )
    redis.close()


def test_a_store_that_answers_503_is_waited_for(
    s3_home: StorageHome, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes of 503 cost time and nothing else; the dumps stay until the manifest is there."""
    client = boto3.client("s3", endpoint_url=seaweed["S3_ENDPOINT"])
    with FaultProxy(seaweed["S3_ENDPOINT"], client) as proxy:
        monkeypatch.setenv("S3_ENDPOINT", proxy.endpoint)
        batch = s3_home.batch([30, 400])
        dumps = s3_home.write_dumps(batch)
        this_node()
        proxy.faults.busy_for(float(os.environ.get("EAGLEFEED_TEST_BUSY_SECONDS", "6")))
        with ThreadPoolExecutor(1) as pool:
            stored = pool.submit(jobs.store_batch, batch.to_payload(), dumps)
            wait_for(lambda: proxy.faults.num_busy > 0, "a 503")
            assert len([name for name in s3_home.waiting() if name.endswith(".dump")]) == 2
            stored.result()
        assert proxy.faults.num_busy > 2
        assert_stored_whole(s3_home, batch)
    client.close()
    assert s3_home.waiting() == []


def test_a_bit_flipped_on_the_way_is_sent_again(
    s3_home: StorageHome, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses what was damaged on its way; the file is good and goes again."""
    client = boto3.client("s3", endpoint_url=seaweed["S3_ENDPOINT"])
    with FaultProxy(seaweed["S3_ENDPOINT"], client) as proxy:
        monkeypatch.setenv("S3_ENDPOINT", proxy.endpoint)
        batch = s3_home.batch([30, 400])
        dumps = s3_home.write_dumps(batch)
        this_node()
        proxy.faults.flip_uploads = 2
        jobs.store_batch(batch.to_payload(), dumps)
        assert proxy.faults.flip_uploads == 0
        assert_stored_whole(s3_home, batch)
    client.close()


def test_a_shard_file_that_changes_on_the_disk_is_not_stored(
    home: StorageHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that changed between encoding and upload are found by their checksum: nothing is published."""
    batch = home.batch([300])
    dumps = home.write_dumps(batch)
    encode = jobs.encode_shard

    def encode_and_damage(node: Any, batch: Batch, dumps: Any, path: Path) -> Any:
        written = encode(node, batch, dumps, path)
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        return written

    monkeypatch.setattr(jobs, "encode_shard", encode_and_damage)
    with pytest.raises(CorruptData, match="this disk is failing"):
        jobs.store_batch(batch.to_payload(), dumps)
    assert list(home.store().list(f"{home.run}/shards/")) == []
    assert len(home.waiting()) == 1


def test_a_worker_that_is_to_stop_gives_its_job_back(home: StorageHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is away, the page is told why; a stop ends the waiting; the dumps stay."""
    said: list[str] = []
    monkeypatch.setattr(patience, "on_wait", said.append)
    batch = home.batch([300])
    dumps = home.write_dumps(batch)
    node = this_node()

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(node.store, "put_file", away, raising=False)
    with ThreadPoolExecutor(1) as pool:
        stored = pool.submit(jobs.store_batch, batch.to_payload(), dumps)
        time.sleep(0.3)
        assert not stored.done()
        patience.stop_requested.set()
        with pytest.raises(StoreUnavailable, match="given back"):
            stored.result(10)
    assert said and said[0].endswith("waits: the store is away")
    assert len(home.waiting()) == 1


def test_a_full_disk_under_the_spool_is_waited_for(
    tmp_path: Path, run: str, valkey: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for the shard's file: the message names the disk, and the batch is stored when there is room."""
    home = StorageHome.make(tmp_path, run, valkey, spool=small_disk / "spool")
    with in_this_process(home, monkeypatch):
        batch = home.batch([1000, 1000, 1000, 700])
        dumps = home.write_dumps(batch)
        this_node()
        other = small_disk / "other"
        other.write_bytes(bytes((4 << 20) - sum(p.stat().st_size for p in home.spool_folder.iterdir()) - 300_000))
        with ThreadPoolExecutor(1) as pool:
            stored = pool.submit(jobs.store_batch, batch.to_payload(), dumps)
            time.sleep(1)
            assert not stored.done()
            assert len([name for name in home.waiting() if name.endswith(".dump")]) == 4
            other.unlink()
            stored.result(60)
        assert_stored_whole(home, batch)
        assert home.waiting() == []


def test_wrong_credentials_stop_a_worker_at_its_start(s3_home: StorageHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends with the message before it takes a job; the job and its dumps wait for the next one."""
    batch = s3_home.batch([30, 40])
    job_id = s3_home.enqueue(batch, s3_home.write_dumps(batch))
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(EnvironmentFault, match="refuses these credentials"):
            this_node()
        log = s3_home.folder / "refused.log"
        assert s3_home.start_worker("--burst", log=log).wait(60) == 3
        assert "refuses these credentials" in log.read_text()
    assert s3_home.has_job(job_id) and len(s3_home.waiting()) == 2
    assert s3_home.start_worker("--burst").wait(60) == 0
    assert_stored_whole(s3_home, batch)


def test_a_store_killed_in_mid_upload_that_comes_back_loses_nothing(
    tmp_path: Path, run: str, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the server while parts are under way, back after some seconds: the batch is stored, once."""
    server = Seaweed(tmp_path / "weed")
    server.start()
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        home = StorageHome.make(
            tmp_path,
            run,
            valkey,
            f"s3://{BUCKET}/killed",
            hidden_size=1024,
            store_settings="part_bytes = 5_242_880\nupload_concurrency = 1\nmax_attempts = 2",
        )
        batches = [home.batch([2000, 2000], first=10 * number) for number in range(3)]
        for batch in batches:
            home.announce(batch)
            home.enqueue(batch, home.write_dumps(batch))
        worker = home.start_worker("--burst")
        store: Any = home.store()
        wait_for(lambda: bool(list(store.unfinished(f"{run}/"))), "an upload under way")
        server.stop(signal.SIGKILL)
        time.sleep(float(os.environ.get("EAGLEFEED_TEST_AWAY_SECONDS", "5")))
        assert worker.poll() is None
        assert len([name for name in home.waiting() if name.endswith(".dump")]) >= 4
        server.start()
        assert worker.wait(180) == 0, (home.folder / f"worker-{home.node}.log").read_text()[-3000:]
        for batch in batches:
            assert_stored_whole(home, batch)
        assert home.waiting() == []
        audit = home.eaglefeed("audit", "--deep", "--json")
        record = json.loads(audit.stdout)
        assert (audit.returncode, record["stored"], record["missing"], record["duplicate"]) == (0, 6, 0, 0)
    finally:
        server.stop()


def test_a_worker_killed_in_mid_upload_loses_nothing(
    tmp_path: Path, run: str, valkey: str, seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the worker: the next one takes the job, clears the half-written shard file, and stores the batch."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    home = StorageHome.make(
        tmp_path,
        run,
        valkey,
        f"s3://{BUCKET}/killed-worker",
        hidden_size=1024,
        store_settings="part_bytes = 5_242_880\nupload_concurrency = 1",
    )
    batch = home.batch([3000, 3000])
    home.announce(batch)
    job_id = home.enqueue(batch, home.write_dumps(batch))
    worker, store = home.start_worker(), home.store()
    wait_for(lambda: bool(list(store.unfinished(f"{run}/"))), "an upload under way")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert store.head(manifest_key(run, batch.id)) is None
    assert len(home.waiting()) == 3  # two dumps and the dead worker's shard file
    worker = home.start_worker()
    try:
        wait_for(lambda: store.head(manifest_key(run, batch.id)) is not None, "the batch stored")
        wait_for(lambda: not home.has_job(job_id), "the end of the job")
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    assert_stored_whole(home, batch)
    assert home.waiting() == []
    gc = home.eaglefeed("gc", "--age-minutes", "0", "--yes")
    assert "removed  unfinished upload" in gc.stdout
    assert list(store.unfinished(f"{run}/")) == []
    assert_stored_whole(home, batch)


def test_the_next_batch_is_encoded_while_one_is_uploaded(
    tmp_path: Path, run: str, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone worker finds the next shard ready; a guess that was wrong leaves no file behind."""
    home = StorageHome.make(tmp_path, run, valkey)
    with in_this_process(home, monkeypatch):
        first, second, third = (home.batch([300, 200], first=10 * number) for number in range(3))
        dumps = {batch.id: home.write_dumps(batch) for batch in (first, second, third)}
        home.enqueue(second, dumps[second.id])
        assert node_name() == home.node
        jobs.store_batch(first.to_payload(), dumps[first.id])
        look = jobs.lookahead()
        wait_for(lambda: any(name.endswith(".shard") for name in home.waiting()), "a shard ahead")
        this_node().redis.lpop(queues.store_queue(this_node().redis, home.node).key)  # as its worker takes it
        encoded: list[str] = []
        monkeypatch.setattr(jobs, "encode_shard", lambda node, batch, dumps, path: encoded.append(batch.id))
        jobs.store_batch(second.to_payload(), dumps[second.id])
        assert second.id not in encoded
        assert_stored_whole(home, second)
        monkeypatch.undo()
    assert look is not None
    assert [name for name in home.waiting() if name.endswith(".shard")] == []


def test_a_batch_in_hand_that_waits_again_is_not_encoded_under_its_own_upload(
    tmp_path: Path, run: str, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job taken for dead and delivered again while it is worked on: its shard file is written once, and stored."""
    home = StorageHome.make(tmp_path, run, valkey)
    with in_this_process(home, monkeypatch):
        batch = home.batch([300, 200])
        dumps = home.write_dumps(batch)
        home.enqueue(batch, dumps)
        encoded: list[str] = []
        encode = jobs.encode_shard

        def encode_and_note(node: Any, batch: Batch, dumps: Any, path: Path) -> Any:
            encoded.append(batch.id)
            return encode(node, batch, dumps, path)

        monkeypatch.setattr(jobs, "encode_shard", encode_and_note)
        jobs.store_batch(batch.to_payload(), dumps)
        jobs.lookahead().close()
        assert encoded == [batch.id]
        assert_stored_whole(home, batch)
        monkeypatch.undo()
