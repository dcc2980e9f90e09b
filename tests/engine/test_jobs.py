"""From a job's payload to manifests, with the two faults that this project exists for in a real engine (issue 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from config import queues
from eaglefeed.manifest import Manifest, manifest_key
from eaglefeed.records import Batch, Sample
from eaglefeed.stores import open_store
from storage import node as storage_node
from storage.jobs import store_batch
from tests.engine.conftest import CHUNK_TOKENS, FaultSwitch
from tests.engine.engines import Served, prompts, with_prefix
from workers import jobs

NODE = "engine-tests"


@pytest.fixture
def node(valkey: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """This process as a node's worker, but for its engine and run: an empty Redis database, a directory store."""
    monkeypatch.setenv("REDIS_URL", f"{valkey.removesuffix('/0')}/7")
    monkeypatch.setenv("EAGLEFEED_NODE", NODE)
    monkeypatch.setenv("EAGLEFEED_STORE", str(tmp_path / "store"))
    forget_node()
    redis = queues.connect()
    yield redis
    redis.close()
    forget_node()


def forget_node() -> None:
    """A process reads its node's settings once; a test process is several nodes."""
    jobs.this_node.cache_clear()
    storage_node.this_node.cache_clear()


def serve_as_node(engine: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the node's environment at a running engine."""
    model, spool = engine.settings.model, engine.settings.spool
    run_file = folder / "run.toml"
    run_file.write_text(
        f'name = "{engine.settings.name}"\n[model]\npath = "{model.path}"\nlayers = {list(model.layers or ())}\n'
        f'[spool]\npath = "{spool.path}"\nmax_disk_percent = 95\n[workers]\nattempts = 2\n'
    )
    monkeypatch.setenv("EAGLEFEED_RUN", str(run_file))
    monkeypatch.setenv("EAGLEFEED_ENGINE_URL", engine.engine.urls[0])


def extracted(engine: Served, samples: list[Sample], redis: Redis) -> tuple[Batch, dict[str, Any]]:
    """Run the extract job, as a worker would, and return what it handed to storage."""
    batch = Batch(engine.settings.name, tuple(samples))
    jobs.extract_batch(batch.to_payload())
    job = Job.fetch(f"store-{batch.id}", connection=redis, serializer=JSONSerializer)
    assert job.origin == f"store.{NODE}"
    kwargs: dict[str, Any] = job.kwargs
    return batch, kwargs


def stored(engine: Served, batch: Batch, handed: dict[str, Any], store: str) -> Manifest:
    """Run the store job on it and read the manifest."""
    store_batch(**handed)
    return Manifest.from_json(open_store(store).get(manifest_key(engine.settings.name, batch.id)))


def test_no_short_dump_of_a_prefix_cache_is_stored(
    radix_engine: Served, node: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations that share a long system prompt, the radix cache on, past the start-up proof.

    Whole ones are stored; each short one is rejected and named with its two lengths; nothing short is in the shard.
    """
    serve_as_node(radix_engine, tmp_path, monkeypatch)
    system, *turns = prompts([200, 20, 30, 40, 50], seed=21)
    conversations = with_prefix(system, turns)
    radix_engine.refusals(conversations[:1])  # the prefix is in the cache now
    others = prompts([70, 90], seed=22)
    batch, handed = extracted(radix_engine, conversations + others, node)
    assert set(handed["dumps"]) == {sample.id for sample in others}
    manifest = stored(radix_engine, batch, handed, str(tmp_path / "store"))
    assert {sample.id for sample in manifest.samples} == {sample.id for sample in others}
    assert all(sample.num_rows == sample.num_tokens for sample in manifest.samples)
    assert {record.id for record in manifest.rejected} == {sample.id for sample in conversations}
    for record in manifest.rejected:
        assert record.reason == "short-dump"
        assert 0 < record.num_rows < record.num_tokens
        assert record.detail == f"{record.num_rows} rows for {record.num_tokens} tokens"


def test_no_short_dump_of_stock_chunking_is_stored(
    faulty_engine: Served, switch: FaultSwitch, node: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts longer than a chunk, in SGLang's own way of keeping the last chunk: the same."""
    serve_as_node(faulty_engine, tmp_path, monkeypatch)
    switch.set("stock-chunking")
    long, short = prompts([100, 300, 500], seed=23), prompts([20], seed=24)
    batch, handed = extracted(faulty_engine, long + short, node)
    assert jobs.is_handed_over(jobs.this_node(), batch)
    jobs.extract_batch(batch.to_payload())  # a second delivery asks nothing again
    manifest = stored(faulty_engine, batch, handed, str(tmp_path / "store"))
    assert all(sample.num_rows == sample.num_tokens for sample in manifest.samples)
    assert {sample.id for sample in long} <= {record.id for record in manifest.rejected}
    for record in manifest.rejected:
        assert record.reason == "short-dump"
        assert 0 < record.num_rows <= CHUNK_TOKENS


def test_a_sample_that_fails_once_is_tried_again_alone(
    faulty_engine: Served, switch: FaultSwitch, node: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows swapped between requests of one forward: alone, each sample has its own, and all are stored."""
    serve_as_node(faulty_engine, tmp_path, monkeypatch)
    switch.set("rows-swapped")
    samples = prompts([48, 48, 48], seed=25)
    batch, handed = extracted(faulty_engine, samples, node)
    assert set(handed["dumps"]) == {sample.id for sample in samples}
    assert handed["rejected"] == []
    manifest = stored(faulty_engine, batch, handed, str(tmp_path / "store"))
    assert {sample.id for sample in manifest.samples} == {sample.id for sample in samples}
    assert faulty_engine.leftovers() == []
