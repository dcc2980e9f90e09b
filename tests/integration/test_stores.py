"""Both stores keep their promises, on a real directory and a real S3 server with authentication."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

from config.ports import free_port
from eaglefeed.checksum import checksum, path_checksum
from eaglefeed.errors import CorruptData, EnvironmentFault, StoreUnavailable
from eaglefeed.stores import Store, StoreOptions, open_store
from tests.fault_proxy import FaultProxy
from tests.services import BUCKET

PART_BYTES = 5 << 20
OPTIONS = StoreOptions(part_bytes=PART_BYTES, concurrency=3, max_attempts=3)


@pytest.fixture
def s3_environment(seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return open_store(str(tmp_path / "store"))
    request.getfixturevalue("s3_environment")
    return open_store(f"s3://{BUCKET}/{tmp_path.name}", OPTIONS)


@pytest.fixture
def proxy(seaweed: dict[str, str], s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    client = boto3.client("s3", endpoint_url=seaweed["S3_ENDPOINT"])
    with FaultProxy(seaweed["S3_ENDPOINT"], client) as running:
        monkeypatch.setenv("S3_ENDPOINT", running.endpoint)
        yield running
    client.close()


@pytest.fixture
def behind_proxy(proxy: FaultProxy, tmp_path: Path) -> Store:
    return open_store(f"s3://{BUCKET}/{tmp_path.name}", OPTIONS)


def file_of(folder: Path, num_bytes: int) -> tuple[Path, str]:
    path = folder / f"file-{num_bytes}"
    path.write_bytes(os.urandom(num_bytes))
    return path, path_checksum(path)


def test_what_is_put_is_there(store: Store, tmp_path: Path) -> None:
    """A file of one part and one of several come back whole, in ranges, with size and checksum."""
    for num_bytes in (1000, 2 * PART_BYTES + 77):
        path, expected = file_of(tmp_path, num_bytes)
        info = store.put_file(f"a/{num_bytes}", path, expected)
        assert (info.num_bytes, info.checksum) == (num_bytes, expected)
        assert store.checksum(f"a/{num_bytes}") == expected
        assert store.get(f"a/{num_bytes}") == path.read_bytes()
        assert store.get_range(f"a/{num_bytes}", 10, 500) == path.read_bytes()[10:500]
        found = store.head(f"a/{num_bytes}")
        assert found is not None
        assert found.num_bytes == num_bytes


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(store: Store, tmp_path: Path) -> None:
    """The store is told the checksum, refuses other bytes, and keeps no object."""
    for num_bytes in (1000, 2 * PART_BYTES):
        path, expected = file_of(tmp_path, num_bytes)
        wrong = f"crc32:{zlib.crc32(expected.encode()):08x}"
        with pytest.raises(CorruptData):
            store.put_file("a/wrong", path, wrong)
        assert store.head("a/wrong") is None


def test_create_happens_once(store: Store) -> None:
    """Of sixteen that create one key at once, one does, and its bytes stay."""
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda number: store.create("a/once", b"%d" % number), range(16)))
    assert sum(made) == 1
    assert store.get("a/once") == b"%d" % made.index(True)


@pytest.mark.parametrize("num_bytes", [1000, 2 * PART_BYTES])
def test_a_file_is_not_put_over_another(store: Store, tmp_path: Path, num_bytes: int) -> None:
    """create_only keeps the first file, in one part or several; without it the second replaces the first."""
    first, first_checksum = file_of(tmp_path, num_bytes)
    second, second_checksum = file_of(tmp_path, num_bytes + 1)
    store.put_file("a/file", first, first_checksum, create_only=True)
    with pytest.raises(FileExistsError):
        store.put_file("a/file", second, second_checksum, create_only=True)
    assert store.checksum("a/file") == first_checksum
    store.put_file("a/file", second, second_checksum)
    assert store.checksum("a/file") == second_checksum


def test_lists_are_in_order_and_below_the_prefix(store: Store) -> None:
    """Keys come in order, only those below the prefix, and nothing for a prefix that is not there."""
    for key in ("run/b/2", "run/b/10", "run/a", "run/b/1", "runner/x", "other"):
        store.create(key, key.encode())
    assert [info.key for info in store.list("run/")] == ["run/a", "run/b/1", "run/b/10", "run/b/2"]
    assert [info.key for info in store.list("run/b/1")] == ["run/b/1", "run/b/10"]
    assert list(store.list("nothing/")) == []


def test_more_keys_than_one_page(store: Store) -> None:
    """A listing goes on past an S3 page of a thousand."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.create(f"many/{number:05d}", b""), range(1100)))
    assert [info.key for info in store.list("many/")] == [f"many/{number:05d}" for number in range(1100)]


def test_what_is_not_there(store: Store) -> None:
    """Reading is a FileNotFoundError, asking is None, deleting is no error."""
    assert store.head("nothing") is None
    for read in (
        lambda: store.get("nothing"),
        lambda: store.get_range("nothing", 0, 3),
        lambda: store.checksum("nothing"),
    ):
        with pytest.raises(FileNotFoundError):
            read()
    store.create("a/gone", b"x")
    store.delete("a/gone")
    store.delete("a/gone")
    assert store.head("a/gone") is None


def test_a_range_past_the_end_is_damage(store: Store) -> None:
    """Fewer bytes than asked for mean a cut object, not a short answer."""
    store.create("a/short", b"0123456789")
    with pytest.raises(CorruptData, match="cut"):
        store.get_range("a/short", 5, 20)
    assert store.get_range("a/short", 3, 3) == b""


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../../b", "a/.", "a\\b", "a\0b"])
def test_a_key_stays_inside_the_store(store: Store, key: str) -> None:
    """No key leads out of the store."""
    with pytest.raises(ValueError, match="not a key"):
        store.create(key, b"x")


def test_check_says_how_create_is_kept_atomic(store: Store) -> None:
    """A store that can be used says so, and leaves nothing behind."""
    assert store.check().startswith("create is a")
    assert list(store.list("")) == []


def test_unfinished_uploads_are_found_and_removed(store: Store, tmp_path: Path, seaweed: dict[str, str]) -> None:
    """Parts that no key names are listed with their age, and can be removed."""
    if store.url.startswith("s3://"):
        client = boto3.client("s3", endpoint_url=seaweed["S3_ENDPOINT"])
        key = f"{tmp_path.name}/run/shards/x"
        upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * PART_BYTES)
        client.close()
    else:
        (tmp_path / "store/run/shards").mkdir(parents=True)
        (tmp_path / "store/run/shards/.part-12345678").write_bytes(b"x" * 100)
    found = list(store.unfinished("run/"))
    assert len(found) == 1
    assert found[0].started_at > 1.7e9
    assert list(store.list("run/")) == []
    store.discard(found[0])
    store.discard(found[0])
    assert list(store.unfinished("run/")) == []


def test_wrong_credentials_are_named(s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret and an unknown key are the environment's fault, and the message says what to check."""
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "wrong")
            with pytest.raises(EnvironmentFault, match=r"refuses these credentials.*check the key"):
                open_store(f"s3://{BUCKET}/x", OPTIONS).check()


def test_no_credentials_are_named(s3_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where boto3's chain ends without any, the message lists what can be set."""
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(EnvironmentFault, match=r"no credentials.*AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{BUCKET}/x", OPTIONS).check()


def test_a_missing_bucket_is_named_and_not_created(s3_environment: None) -> None:
    """This server would create the bucket with the first PUT; the check comes before."""
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="no bucket 'not-there'"):
            open_store("s3://not-there/x", OPTIONS).check()


def test_a_store_that_is_away_may_come_back(s3_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listening is a fault that may pass."""
    monkeypatch.setenv("S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable):
        open_store(f"s3://{BUCKET}/x", StoreOptions(max_attempts=1)).get("a")


def test_a_store_that_answers_503_may_come_back(proxy: FaultProxy, behind_proxy: Store) -> None:
    """Throttling that outlasts boto3's own attempts is a fault that may pass; then the store works again."""
    proxy.faults.busy_for(3600)
    with pytest.raises(StoreUnavailable, match=r"SlowDown|503"):
        behind_proxy.create("a/x", b"x")
    proxy.faults.busy_until = 0
    assert behind_proxy.create("a/x", b"x")


def test_a_store_without_conditions_is_told_apart(proxy: FaultProxy, behind_proxy: Store) -> None:
    """The check finds a store that ignores If-None-Match and states the fallback, which still looks first."""
    proxy.faults.ignore_conditions = True
    assert "does not honour If-None-Match" in behind_proxy.check()
    assert behind_proxy.create("a/x", b"first")
    assert not behind_proxy.create("a/x", b"second")
    assert behind_proxy.get("a/x") == b"first"


def test_a_store_that_refuses_conditions_is_used_without(
    proxy: FaultProxy, behind_proxy: Store, tmp_path: Path
) -> None:
    """501 for If-None-Match: objects are looked for before they are written, manifests and shards alike."""
    proxy.faults.refuse_conditions = True
    assert "does not honour If-None-Match" in behind_proxy.check()
    again = open_store(behind_proxy.url, OPTIONS)  # one that has not been checked finds out by itself
    for num_bytes in (1000, 2 * PART_BYTES):
        path, expected = file_of(tmp_path, num_bytes)
        assert again.put_file(f"a/{num_bytes}", path, expected, create_only=True).checksum == expected
        with pytest.raises(FileExistsError):
            again.put_file(f"a/{num_bytes}", path, expected, create_only=True)
    assert again.create("a/x", b"first") and not again.create("a/x", b"second")


def test_a_store_without_checksums_is_read_back(proxy: FaultProxy, behind_proxy: Store, tmp_path: Path) -> None:
    """Where the store reports no checksum, the object is read back and hashed."""
    proxy.faults.hide_checksums = True
    for num_bytes in (1000, 2 * PART_BYTES):
        path, expected = file_of(tmp_path, num_bytes)
        assert behind_proxy.put_file(f"a/{num_bytes}", path, expected).checksum == expected
        assert behind_proxy.checksum(f"a/{num_bytes}") == expected


def test_a_bit_flipped_on_the_way_is_refused(proxy: FaultProxy, behind_proxy: Store, tmp_path: Path) -> None:
    """The checksum was made before the bytes left: the server finds the flipped bit."""
    path, expected = file_of(tmp_path, 5000)
    proxy.faults.flip_uploads = 10
    with pytest.raises(CorruptData):
        behind_proxy.put_file("a/x", path, expected)
    proxy.faults.flip_uploads = 0
    assert behind_proxy.put_file("a/x", path, expected).checksum == expected


def test_an_answer_that_breaks_off_is_asked_for_again(proxy: FaultProxy, behind_proxy: Store) -> None:
    """A body cut in the middle is not returned, and not an error either while another try helps."""
    data = os.urandom(50_000)
    behind_proxy.create("a/x", data)
    proxy.faults.cut_downloads = 2
    assert behind_proxy.get("a/x") == data
    assert checksum(behind_proxy.get_range("a/x", 1000, 40_000)) == checksum(data[1000:40_000])


def test_a_full_disk_is_named_with_its_numbers(tmp_path: Path, small_disk: Path) -> None:
    """A directory store on a full disk says how much is free, keeps nothing, and works when there is room."""
    path, expected = file_of(tmp_path, 3 << 20)
    other = small_disk / "other"
    other.write_bytes(bytes(2 << 20))
    store = open_store(str(small_disk / "store"))
    with pytest.raises(StoreUnavailable, match=r"disk is full \([0-9,]+ bytes free\)"):
        store.put_file("a/x", path, expected)
    assert list(store.list("")) == [] and list(store.unfinished("")) == []
    other.unlink()
    assert store.put_file("a/x", path, expected).checksum == expected


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file in the folder's place is the environment's fault."""
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(EnvironmentFault, match="store"):
        open_store(str(tmp_path / "store")).create("a/x", b"x")


def test_options_reach_the_client(s3_environment: None) -> None:
    """Attempts and connections are those of the run file."""
    store: Any = open_store(f"s3://{BUCKET}/x", StoreOptions(concurrency=7, max_attempts=9))
    config = store._client.meta.config
    assert config.retries["total_max_attempts"] == 9
    assert config.max_pool_connections >= 7
