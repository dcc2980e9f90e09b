"""The job of a GPU node: a batch of token ids becomes proved dumps, handed over to this node's storage."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis
from rq import get_current_job

from config import ending, environment, names, queues
from config.model_identity import run_identity
from config.run import load_node_run
from eaglefeed.errors import CorruptData, ProofFailed
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import RejectedSampleRecord
from eaglefeed.records import Batch, Sample
from workers import suspicion
from workers.answered_dump import num_rows_of, remove_dump
from workers.engine import Answer, Engine, EngineDied
from workers.proof import prove
from workers.suspicion import Suspicion

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """What a job needs of the node it runs on."""

    name: str
    identity: RunIdentity
    engine: Engine
    folder: Path
    attempts: int
    redis: Redis


@dataclass(slots=True)
class Outcome:
    """What became of a batch's samples so far.

    Attributes:
        dumps: sample id → file name below the run's folder of the spool, proved.
        failed: samples that are to be tried again, with why they failed last.
        poison: samples that end engines, and are not asked for any more.
        receipt: of the last proved dump: which engine made this batch.
    """

    dumps: dict[str, str] = field(default_factory=dict)
    failed: dict[str, tuple[Sample, RejectedSampleRecord]] = field(default_factory=dict)
    poison: list[RejectedSampleRecord] = field(default_factory=list)
    receipt: dict[str, Any] = field(default_factory=dict)


def extract_batch(payload: dict[str, Any]) -> int | None:
    """Steps 6 to 8 of a sample's life (docs/structure.md): ask the engine, prove, retry alone, reject, hand over.

    Returns how many samples came through; None when an earlier delivery had handed the batch over.

    Raises:
        EngineGone, SpoolFull: nothing is lost; the job may run again.
        CorruptData: the payload is not what the producer enqueued.
    """
    batch, node = Batch.from_payload(payload), this_node()
    if batch.run != node.identity.run:
        raise CorruptData(f"a batch of run {batch.run!r} on a node that serves {node.identity.run!r}")
    if is_handed_over(node, batch):
        log.info("batch %s waits for storage already", batch.id)
        return None
    outcome = Outcome()
    suspected = suspicion.read(node.redis, batch)
    try:
        with suspicion.turn(node.folder, alone=suspected.is_narrowing):
            suspected = narrow(node, batch, suspected)
            outcome.poison = suspicion.rejected(batch, suspected)
            innocent = [sample for sample in batch.samples if sample.id not in suspected.poison]
            if innocent:
                extract(node, batch, innocent, outcome)
        for _ in range(node.attempts - 1):
            for sample, _ in list(outcome.failed.values()):
                extract(node, batch, [sample], outcome)
    except BaseException:
        remove_dumps(node, outcome)
        raise
    try:
        hand_over(node, batch, payload, outcome)
    except ending.JobForgotten:
        remove_dumps(node, outcome)
        raise
    suspicion.forget(node.redis, batch)
    return len(outcome.dumps)


def narrow(node: Node, batch: Batch, suspected: Suspicion) -> Suspicion:
    """Probe a batch that engines died of, half by half, until the poison is found or all are cleared.

    A probe that ends the engine raises EngineDied: the job comes back with what was found out.
    """
    while suspected.is_narrowing:
        ids = suspected.probe()
        log.warning("batch %s: an engine died twice of it; %d of its samples are probed", batch.id, len(ids))
        probe = Outcome()
        extract(node, batch, [sample for sample in batch.samples if sample.id in ids], probe)
        remove_dumps(node, probe)
        suspected = suspected.survived(ids)
        suspicion.write(node.redis, batch, suspected)
    return suspected


def ask(node: Node, batch: Batch, samples: Sequence[Sample]) -> list[Answer]:
    """The engine's answers; its death is written down against the samples."""
    try:
        return node.engine.ask(batch.id, samples)
    except EngineDied:
        before = suspicion.read(node.redis, batch)
        suspicion.write(node.redis, batch, before.died([sample.id for sample in samples]))
        raise


def extract(node: Node, batch: Batch, samples: Sequence[Sample], outcome: Outcome) -> None:
    """Ask for samples, all in flight, and prove each answer on its own: a bad one leaves its neighbours be."""
    for answer in ask(node, batch, samples):
        sample = answer.sample
        try:
            path = prove(answer, node.identity, node.folder, batch.id)
        except ProofFailed as error:
            remove_dump(answer, node.folder)
            outcome.failed[sample.id] = (sample, rejected(answer, error, node))
            log.warning("sample %s of batch %s: %s", sample.id, batch.id, error)
        else:
            outcome.failed.pop(sample.id, None)
            outcome.dumps[sample.id] = str(path.relative_to(node.folder))
            outcome.receipt = answer.receipt


def rejected(answer: Answer, error: ProofFailed, node: Node) -> RejectedSampleRecord:
    """How a sample that failed is remembered, with its two lengths."""
    sample = answer.sample
    return RejectedSampleRecord(sample.id, sample.num_tokens, num_rows_of(answer), error.reason, error.detail)


def is_handed_over(node: Node, batch: Batch) -> bool:
    """Whether an earlier delivery of this job has come as far as the store queue."""
    return queues.job_status(node.redis, f"store-{batch.id}") in queues.WAITING


def hand_over(node: Node, batch: Batch, payload: dict[str, Any], outcome: Outcome) -> None:
    """One store job on this node's own queue: dumps and rejects together are the batch's samples.

    Raises JobForgotten when Redis was emptied since this job began.
    """
    queue = queues.store_queue(node.redis, node.name)
    rejects = [*outcome.poison, *(record for _, record in outcome.failed.values())]
    facts = {
        "payload": payload,
        "dumps": outcome.dumps,
        "rejected": [asdict(record) for record in rejects],
        "engine": {"node": node.name, **outcome.receipt},
    }
    ending.hand_on(
        node.redis,
        get_current_job(),
        lambda pipe: queue.enqueue_call(
            names.STORE_JOB,
            kwargs=facts,
            job_id=f"store-{batch.id}",
            timeout=-1,
            result_ttl=queues.RESULT_TTL_SECONDS,
            failure_ttl=queues.FAILURE_TTL_SECONDS,
            pipeline=pipe,
        ),
    )


def remove_dumps(node: Node, outcome: Outcome) -> None:
    """Dumps of a job that will run again from its start."""
    for name in outcome.dumps.values():
        (node.folder / name).unlink(missing_ok=True)


@cache
def this_node() -> Node:
    """Read once per process: the run's settings, the model's identity, the engine's address."""
    settings = load_node_run()
    return Node(
        name=environment.node_name(),
        identity=run_identity(settings),
        engine=Engine(environment.engine_urls(settings.engine.replicas), settings.engine.request_timeout_seconds),
        folder=Path(settings.spool.path) / settings.name,
        attempts=settings.workers.attempts,
        redis=queues.connect(),
    )
