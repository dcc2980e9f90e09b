"""What a dead process left in the spool is told apart: what a job will come back for, and what nobody will."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from redis import Redis
from rq.job import JobStatus

from config import queues
from eaglefeed.dump import read_header
from storage.leftovers import clear_leftovers
from storage.node import StorageNode
from storage.spool import Spool
from tests.runs import write_batch
from tests.storage_home import StorageHome


@pytest.fixture
def home(tmp_path: Path, valkey: str) -> StorageHome:
    return StorageHome.make(tmp_path, f"run-{secrets.token_hex(4)}", valkey)


@pytest.fixture
def node(home: StorageHome, valkey: str) -> StorageNode:
    redis = Redis.from_url(valkey)
    return StorageNode(home.node, home.settings, home.identity, home.store(), Spool(home.settings.spool), redis)


def extract_job(node: StorageNode, home: StorageHome, batch: object, status: JobStatus) -> None:
    payload = batch.to_payload()  # type: ignore[attr-defined]
    job = queues.extract_queue(node.redis).enqueue_call(
        "workers.jobs.extract_batch", kwargs={"payload": payload}, job_id=payload["batch_id"], timeout=-1
    )
    job.set_status(status)
    node.redis.lrem(queues.extract_queue(node.redis).key, 0, job.id)


def test_dumps_that_a_store_job_names_wait_for_it(home: StorageHome, node: StorageNode) -> None:
    """Queued for storage: kept."""
    batch = home.batch([5, 6])
    home.enqueue(batch, home.write_dumps(batch))
    cleared = clear_leftovers(node)
    assert (cleared.kept, cleared.removed) == (2, 0)
    assert len(home.waiting()) == 2


def test_dumps_of_a_committed_batch_are_removed(home: StorageHome, node: StorageNode) -> None:
    """A crash between commit and forgetting: the header names the batch, and its manifest is in the store."""
    batch = home.batch([5, 6])
    home.write_dumps(batch)
    write_batch(home.store(), home.identity, batch.samples, home.folder)
    cleared = clear_leftovers(node)
    assert (cleared.kept, cleared.removed) == (0, 2)
    assert cleared.removed_bytes > 0
    assert home.waiting() == []


def test_dumps_that_no_job_names_are_removed(home: StorageHome, node: StorageNode) -> None:
    """Redis was emptied, or the attempt that made them died: their samples will be extracted again."""
    home.write_dumps(home.batch([5, 6]))
    assert clear_leftovers(node).removed == 2


@pytest.mark.parametrize(("status", "kept"), [(JobStatus.STARTED, 3), (JobStatus.QUEUED, 0)])
def test_dumps_of_an_extraction_are_its_own_while_it_runs(
    home: StorageHome, node: StorageNode, status: JobStatus, kept: int
) -> None:
    """A running attempt's dumps and half-written files are left alone; those of one that died are removed."""
    batch = home.batch([5, 6])
    names = home.write_dumps(batch)
    (home.spool_folder / f"{next(iter(names.values()))}.part").write_bytes(b"half")
    extract_job(node, home, batch, status)
    cleared = clear_leftovers(node)
    assert (cleared.kept, cleared.removed) == (kept, 3 - kept)


def test_folders_of_replicas_are_cleared_too(home: StorageHome, node: StorageNode) -> None:
    """What a store job names there waits for it; the rest goes, also of replicas that the run has no more."""
    kept, gone = home.batch([5, 6]), home.batch([7, 8], first=10)
    home.enqueue(kept, home.write_dumps(kept, replica=1))
    home.write_dumps(gone, replica=12)
    cleared = clear_leftovers(node)
    assert (cleared.kept, cleared.removed) == (2, 2)
    assert {path.parent.name for path in home.spool_folder.rglob("*.dump")} == {"r1"}


def test_a_damaged_header_is_placed_by_its_name(home: StorageHome, node: StorageNode) -> None:
    """A dump whose header is torn still belongs to a batch, by its file's name."""
    batch = home.batch([5])
    dumps = home.write_dumps(batch)
    path = home.spool_folder / dumps[batch.samples[0].id]
    assert read_header(path).batch_id == batch.id
    path.write_bytes(path.read_bytes()[:20])
    home.enqueue(batch, dumps)
    assert clear_leftovers(node).kept == 1


def test_a_dead_process_s_shard_file_is_removed(home: StorageHome, node: StorageNode) -> None:
    """The file's name says which process wrote it; a living one's stays, and so does the norm."""
    import os

    gone = subprocess.Popen(["true"])
    gone.wait()
    for owner in (gone.pid, os.getpid()):
        (home.spool_folder / f"{'b' * 32}.{owner}.shard").write_bytes(b"x")
    (home.spool_folder / "final_norm.safetensors").write_bytes(b"norm")
    assert clear_leftovers(node).removed == 1
    assert home.waiting() == [f"{'b' * 32}.{os.getpid()}.shard", "final_norm.safetensors"]


def test_dumps_that_are_handed_on_between_two_looks_are_kept(
    home: StorageHome, node: StorageNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extract job ends and the store job comes right after the first question: neither answer says "nobody's"."""
    batch = home.batch([5, 6])
    dumps = home.write_dumps(batch)
    extract_job(node, home, batch, JobStatus.STARTED)
    ask = queues.job_status

    def ask_then_hand_on(redis: Redis, job_id: str) -> str:
        answer = ask(redis, job_id)
        if not ask(redis, f"store-{batch.id}"):
            home.enqueue(batch, dumps)
            redis.delete(f"rq:job:{batch.id}")
        return answer

    monkeypatch.setattr(queues, "job_status", ask_then_hand_on)
    assert clear_leftovers(node).removed == 0


def test_a_job_that_is_gone_has_no_status(node: StorageNode) -> None:
    """It may end at any moment: that is an answer, not an error that stops a worker."""
    assert queues.job_status(node.redis, "store-of-nobody") == ""
