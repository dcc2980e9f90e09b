"""`/metrics`: the page's numbers in Prometheus' text form or OpenMetrics, whichever the scraper asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from dashboard.figures import Node, Numbers, Queue, Run

_RUN_COUNTERS = {
    "unique": ("eaglefeed_samples_unique", "Unique samples enqueued."),
    "batches": ("eaglefeed_batches_enqueued", "Batches enqueued."),
    "stored": ("eaglefeed_samples_stored", "Samples whose manifest is in the store."),
    "tokens": ("eaglefeed_tokens_stored", "Tokens of stored samples."),
    "raw_bytes": ("eaglefeed_states_raw_bytes", "Hidden states of stored samples before the codec."),
    "stored_bytes": ("eaglefeed_shards_stored_bytes", "Shards in the store."),
    "retried": ("eaglefeed_attempts_retried", "Attempts that failed and were made again."),
}
_STATES = ("empty", "starting", "running", "stalled", "dead", "paused", "cancelled", "closed", "done")


def render(numbers: Numbers, accept: str = "") -> tuple[bytes, str]:
    """The body and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Numbers(numbers))
    if "application/openmetrics-text" in accept:
        return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
    return exposition.generate_latest(registry), exposition.CONTENT_TYPE_LATEST


class _Numbers(Collector):
    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        yield from _run_counters(self._numbers.runs)
        yield from _run_gauges(self._numbers.runs)
        yield from _queue_gauges(self._numbers.queues)
        yield from _node_gauges(self._numbers)


def _run_counters(runs: Iterable[Run]) -> Iterator[Metric]:
    for field, (name, text) in _RUN_COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=["run"])
        for run in runs:
            family.add_metric([run.name], run.counts.get(field, 0))
        yield family
    rejected = CounterMetricFamily(
        "eaglefeed_samples_rejected", "Samples refused, by reason.", labels=["run", "reason"]
    )
    # A gauge: retrying or dropping a dead letter takes its samples off again.
    dead = GaugeMetricFamily("eaglefeed_samples_dead", "Samples of dead letters, by reason.", labels=["run", "reason"])
    for run in runs:
        for reason, count in run.reasons("rejected").items():
            rejected.add_metric([run.name, reason], count)
        for reason, count in run.reasons("dead").items():
            dead.add_metric([run.name, reason], count)
    yield from (rejected, dead)


def _run_gauges(runs: Iterable[Run]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("eaglefeed_batches_waiting", "Batches enqueued without a manifest yet.", labels=["run"])
    quiet = GaugeMetricFamily("eaglefeed_since_stored_seconds", "Since the last stored sample.", labels=["run"])
    eta = GaugeMetricFamily("eaglefeed_eta_seconds", "Time left at the rate of the last 5 minutes.", labels=["run"])
    state = GaugeMetricFamily("eaglefeed_run_state", "1 for the state the run is in.", labels=["run", "state"])
    for run in runs:
        waiting.add_metric([run.name], run.waiting_batches)
        if run.quiet_seconds is not None:
            quiet.add_metric([run.name], run.quiet_seconds)
        if run.eta_seconds is not None:
            eta.add_metric([run.name], run.eta_seconds)
        for name in _STATES:
            state.add_metric([run.name, name], float(run.state == name))
    yield from (waiting, quiet, eta, state)


def _queue_gauges(queues: Iterable[Queue]) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("eaglefeed_queue_jobs", "Jobs of a queue, by what they do.", labels=["queue", "state"])
    age = GaugeMetricFamily(
        "eaglefeed_queue_oldest_job_age_seconds", "Age of the oldest waiting job.", labels=["queue"]
    )
    for queue in queues:
        for state in ("waiting", "working", "scheduled", "dead"):
            jobs.add_metric([queue.name, state], getattr(queue, state))
        age.add_metric([queue.name], queue.oldest_waiting_seconds or 0.0)
    yield from (jobs, age)


def _node_gauges(numbers: Numbers) -> Iterator[Metric]:
    up = GaugeMetricFamily("eaglefeed_node_ready", "1 when the node's engine is proved and answers.", labels=["node"])
    info = GaugeMetricFamily("eaglefeed_node_info", "Always 1.", labels=["node", "device", "engine_version", "state"])
    spool = GaugeMetricFamily("eaglefeed_spool_bytes", "Dumps waiting on the node.", labels=["node"])
    limit = GaugeMetricFamily("eaglefeed_spool_limit_bytes", "What the spool may hold.", labels=["node"])
    seen = GaugeMetricFamily(
        "eaglefeed_node_last_sample_timestamp_seconds", "When the node's last sample was stored.", labels=["node"]
    )
    for node in numbers.nodes:
        up.add_metric([node.name], float(_is_ready(node)))
        info.add_metric([node.name, node.device, node.engine_version, node.engine_state], 1)
        spool.add_metric([node.name], node.spool_bytes)
        limit.add_metric([node.name], node.spool_max_bytes)
        if node.last_sample_seconds is not None:
            seen.add_metric([node.name], numbers.taken_at - node.last_sample_seconds)
    yield from (up, info, spool, limit, seen)


def _is_ready(node: Node) -> bool:
    return node.engine_state == "ready" and not node.is_stale
