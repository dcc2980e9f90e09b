"""The audit, the rebuild, the index and the collector agree with what the store really holds."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from redis import Redis

from config import counters, names
from config.ports import free_port
from eaglefeed.index import RunIndex, index_table_key
from eaglefeed.manifest import Manifest, RejectedSampleRecord, index_key, manifest_key, shard_key
from eaglefeed.records import Batch
from storage.accounts import amounts
from storage.audit import audit
from tests.runs import make_sample, write_batch
from tests.services import BUCKET
from tests.storage_home import StorageHome


@pytest.fixture
def home(tmp_path: Path, valkey: str) -> StorageHome:
    """A run of three stored batches of two samples, announced and counted."""
    made = StorageHome.make(tmp_path, f"run-{secrets.token_hex(4)}", valkey)
    store = made.store()
    store.create(f"{made.run}/run.json", made.identity.to_json())
    for number in range(3):
        store_batch(made, made.batch([5, 40 + number], first=10 * number))
    return made


def store_batch(home: StorageHome, batch: Batch) -> Manifest:
    home.announce(batch)
    manifest = write_batch(home.store(), home.identity, batch.samples, home.folder)
    redis = home.redis
    counters.count_once(redis, home.run, manifest.batch_id, amounts(manifest))
    redis.close()
    return manifest


def manifests(home: StorageHome) -> list[Manifest]:
    store = home.store()
    return [Manifest.from_json(store.get(info.key)) for info in store.list(f"{home.run}/manifests/")]


def run_audit(home: StorageHome, *arguments: str) -> tuple[int, dict[str, object], str]:
    done = home.eaglefeed("audit", "--json", "--quiet", *arguments)
    return done.returncode, json.loads(done.stdout), done.stderr


def stored_file(home: StorageHome, key: str) -> Path:
    return home.folder / "store" / key


def rewrite(home: StorageHome, manifest: Manifest) -> None:
    stored_file(home, manifest_key(home.run, manifest.batch_id)).write_bytes(manifest.to_json())


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_a_whole_run_is_clean(home: StorageHome, deep: list[str]) -> None:
    """unique = stored + rejected, nothing missing, double or short: exit 0, and exactly these keys."""
    code, record, errors = run_audit(home, *deep)
    assert (code, errors) == (0, "")
    assert list(record) == [
        "run", "unique", "stored", "rejected", "missing", "duplicate", "short", "tokens", "raw_bytes", "stored_bytes",
        "ratio",
    ]  # fmt: skip
    tokens = 3 * 5 + 40 + 41 + 42
    expected = {"run": home.run, "unique": 6, "stored": 6, "rejected": 0, "missing": 0, "duplicate": 0, "short": 0}
    assert {key: record[key] for key in expected} == expected
    assert record["tokens"] == tokens
    assert record["raw_bytes"] == tokens * home.identity.bytes_per_token


def test_an_enqueued_sample_that_is_not_stored_is_missing(home: StorageHome) -> None:
    """Exit 1, and the list names the sample."""
    batch = home.batch([7, 8], first=100)
    home.announce(batch)
    code, record, errors = run_audit(home)
    assert (code, record["missing"], record["unique"]) == (1, 2, 8)
    assert f"missing: sample {batch.samples[1].id}" in errors


def test_rejected_samples_are_accounted_for(home: StorageHome) -> None:
    """A reject with its reason is neither stored nor missing."""
    batch = home.batch([7, 8], first=100)
    home.announce(batch)
    records = tuple(RejectedSampleRecord(each.id, each.num_tokens, 3, "short-dump", "") for each in batch.samples)
    manifest = Manifest(home.run, batch.id, "", 0, "", 0, (), records)
    assert home.store().create(manifest_key(home.run, batch.id), manifest.to_json())
    code, record, _ = run_audit(home)
    assert (code, record["stored"], record["rejected"], record["missing"]) == (0, 6, 2, 0)


def test_a_sample_in_two_batches_is_a_duplicate_and_once_in_the_index(home: StorageHome) -> None:
    """Two nodes raced: the audit names it, and the index keeps the copy of the smaller batch id, in any order."""
    twice, alone = make_sample(0, 5), make_sample(500, 9)
    other = store_batch(home, Batch(home.run, (twice, alone)))
    code, record, errors = run_audit(home)
    assert (code, record["duplicate"], record["stored"], record["unique"]) == (1, 1, 7, 7)
    assert f"duplicate: sample {twice.id} is stored 2 times" in errors
    first = min(each.batch_id for each in manifests(home) if twice.id in {sample.id for sample in each.samples})
    assert home.eaglefeed("index").returncode == 0
    index = RunIndex.from_bytes(home.store().get(index_table_key(home.run)), "index")
    assert len(index) == 7
    assert index.batch_id(int(index.shards[index.rows_of([twice.id])[0]])) == first
    assert other.batch_id in index.known_batch_ids()


def test_a_short_sample_is_named(home: StorageHome) -> None:
    """A manifest that owns up to fewer rows than tokens is found, whoever wrote it."""
    manifest = manifests(home)[0]
    short = replace(manifest.samples[1], num_rows=manifest.samples[1].num_tokens - 3)
    rewrite(home, replace(manifest, samples=(manifest.samples[0], short)))
    code, record, errors = run_audit(home)
    assert (code, record["short"], record["stored"], record["missing"]) == (1, 1, 5, 1)
    assert f"short: sample {short.id} of batch {manifest.batch_id}" in errors


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_shard_that_is_gone_or_cut_is_found_without_reading(home: StorageHome, damage: str) -> None:
    """The listing alone shows it; its samples count as missing."""
    manifest = manifests(home)[0]
    path = stored_file(home, manifest.shard)
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-1])
    code, record, errors = run_audit(home)
    assert (code, record["missing"], record["stored"]) == (1, 2, 4)
    assert ("is not there" if damage == "gone" else f"has {len(data) - 1} bytes of {len(data)}") in errors


def test_a_flipped_bit_is_found_by_the_deep_audit(home: StorageHome) -> None:
    """Sample and tensor are named; the plain audit cannot see it, the deep one exits 1."""
    manifest = manifests(home)[0]
    sample = manifest.samples[1]
    path = stored_file(home, manifest.shard)
    data = bytearray(path.read_bytes())
    data[sample.end - 5] ^= 16
    path.write_bytes(data)
    assert run_audit(home)[0] == 0
    code, record, errors = run_audit(home, "--deep")
    assert (code, record["stored"], record["missing"]) == (1, 5, 1)
    assert f"sample {sample.id}, tensor states" in errors


def test_a_manifest_that_does_not_fit_its_shard_is_found_by_the_deep_audit(home: StorageHome) -> None:
    """A shard of another batch under this one's name."""
    first, second = manifests(home)[:2]
    path = stored_file(home, first.shard)
    path.unlink()
    path.write_bytes(stored_file(home, second.shard).read_bytes())
    rewrite(home, replace(first, shard_bytes=second.shard_bytes))
    code, _, errors = run_audit(home, "--deep")
    assert code == 1
    assert "its header and its manifest name different samples" in errors


def test_a_damaged_manifest_is_named_and_the_others_are_counted(home: StorageHome) -> None:
    """One broken JSON is one problem."""
    manifest = manifests(home)[0]
    path = stored_file(home, manifest_key(home.run, manifest.batch_id))
    path.write_text(path.read_text()[:-20])
    code, record, errors = run_audit(home)
    assert (code, record["stored"], record["missing"]) == (1, 4, 2)
    assert f"manifest: {path} is not a manifest" in errors


def test_without_redis_the_audit_says_what_it_cannot_know(home: StorageHome) -> None:
    """Counted from the manifests, and said so."""
    done = home.eaglefeed("audit", "--redis", f"redis://127.0.0.1:{free_port()}/0")
    assert done.returncode == 0
    assert "counted from the manifests" in done.stdout
    assert "does not answer" in done.stderr


def test_an_emptied_redis_is_rebuilt(home: StorageHome, valkey: str) -> None:
    """Counters, known samples and counted batches are as before; a second rebuild changes nothing."""
    before = read_all(home)
    redis = home.redis
    for key in redis.scan_iter(f"eaglefeed:{home.run}:*"):
        redis.delete(key)
    for _ in range(2):
        done = home.eaglefeed("rebuild", "--quiet")
        assert done.returncode == 0, done.stderr
        assert read_all(home) == before
    assert redis.hlen(names.batches_key(home.run)) == 3
    assert not counters.count_once(redis, home.run, manifests(home)[0].batch_id, {"stored": 2})
    redis.close()
    assert run_audit(home)[0] == 0


def read_all(home: StorageHome) -> tuple[dict[str, int], set[bytes], set[bytes]]:
    redis: Redis = home.redis
    known, counted = redis.smembers(names.known_key(home.run)), redis.smembers(names.counted_key(home.run))
    counts = counters.read(redis, home.run)
    redis.close()
    return counts, set(known), set(counted)  # type: ignore[arg-type]


def test_the_index_grows_by_what_is_new(home: StorageHome) -> None:
    """The second index reads the new manifests alone and equals one made anew; Parquet holds the same rows."""
    assert "(3 read now)" in home.eaglefeed("index").stdout
    assert "(0 read now)" in home.eaglefeed("index").stdout
    store_batch(home, home.batch([11, 12], first=200))
    assert "8 samples of 4 manifests (1 read now)" in home.eaglefeed("index").stdout
    grown = home.store().get(index_table_key(home.run))
    assert "(4 read now)" in home.eaglefeed("index", "--anew").stdout
    anew = RunIndex.from_bytes(home.store().get(index_table_key(home.run)), "index")
    for column in ("ids", "num_tokens", "shards", "starts", "ends", "stored_checksums", "batch_ids", "shard_bytes"):
        assert np.array_equal(getattr(RunIndex.from_bytes(grown, "index"), column), getattr(anew, column))
    rows = pq.read_table(stored_file(home, index_key(home.run))).to_pylist()
    expected = {
        (sample.id, sample.num_tokens, each.shard, sample.start, sample.end, sample.stored_checksum)
        for each in manifests(home)
        for sample in each.samples
    }
    found = {
        (row["sample_id"], row["num_tokens"], row["shard"], row["start"], row["end"], row["stored_checksum"])
        for row in rows
    }
    assert found == expected


@pytest.fixture(params=["directory", "s3"])
def any_home(
    request: pytest.FixtureRequest, tmp_path: Path, valkey: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StorageHome]:
    url = None
    if request.param == "s3":
        for name, value in request.getfixturevalue("seaweed").items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/gc"
    yield StorageHome.make(tmp_path, f"run-{secrets.token_hex(4)}", valkey, url)


def test_what_no_manifest_names_is_listed_and_removed(any_home: StorageHome) -> None:
    """A shard without manifest is listed, removed with --yes, and only when it is old enough; the others stay."""
    home = any_home
    kept = [store_batch(home, home.batch([5, 40], first=10 * number)) for number in range(3)]
    orphan = write_batch(home.store(), home.identity, home.batch([9], first=300).samples, home.folder)
    home.store().delete(manifest_key(home.run, orphan.batch_id))
    assert "0 leftovers" in home.eaglefeed("gc", "--yes").stdout
    listed = home.eaglefeed("gc", "--age-minutes", "0").stdout
    assert orphan.shard in listed
    assert "1 leftovers" in listed and "--yes removes them" in listed
    assert home.store().head(orphan.shard) is not None
    assert "removed  shard without manifest" in home.eaglefeed("gc", "--age-minutes", "0", "--yes").stdout
    assert home.store().head(orphan.shard) is None
    assert "0 leftovers" in home.eaglefeed("gc", "--age-minutes", "0").stdout
    assert all(home.store().head(shard_key(home.run, each.batch_id)) for each in kept)


def test_parts_of_an_interrupted_write_are_removed(home: StorageHome) -> None:
    """What a killed writer left in a directory store, under its temporary name."""
    path = stored_file(home, f"{home.run}/shards/.part-0123456789abcdef")
    path.write_bytes(b"half a shard")
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    assert "unfinished upload" in home.eaglefeed("gc", "--yes").stdout
    assert not path.exists()
    assert run_audit(home, "--deep")[0] == 0


def test_it_is_the_same_count_in_one_process(home: StorageHome) -> None:
    """The function behind the command, called as the acceptance tests do; progress is reported for each manifest."""
    seen: list[tuple[int, int]] = []
    redis = home.redis
    report = audit(home.store(), home.run, redis, on_manifest=lambda *numbers: seen.append(numbers))
    redis.close()
    assert report.is_clean and report.unique_from == "counted by the producer, in Redis"
    assert seen == [(1, 2), (2, 4), (3, 6)]
    assert report.ratio == round(report.raw_bytes / report.stored_bytes, 4)
