"""The arithmetic behind the page, its panels, and /metrics as a parser of the standard reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from config import nodes
from dashboard import charts, dead_letters, figures, metrics, panels, status, wording
from dashboard.access import Access, is_loopback
from dashboard.figures import Node, Numbers, Queue, Run
from dashboard.pipeline import narrow_stage, stages
from eaglefeed import cli

NOW = 1_795_970_730.0
MINUTE = int(NOW // 60)


def make_run(
    counts: dict[str, int] | None = None, minutes: dict[int, dict[str, int]] | None = None, **more: Any
) -> Run:
    minutes = minutes or {}
    rates = tuple(figures.rates(minutes, NOW, window) for window in figures.WINDOWS_MINUTES)
    defaults: dict[str, Any] = {"waiting_batches": 3, "state": "running", "quiet_seconds": 4.0, "eta_seconds": 60.0}
    return Run("r1", counts or {}, rates=rates, minutes=minutes, **{**defaults, **more})


def make_numbers(run: Run, queues: tuple[Queue, ...] = (), nodes: tuple[Node, ...] = ()) -> Numbers:
    return Numbers(NOW, (run,), queues, nodes)


def test_a_steady_run_has_the_same_rate_in_every_window() -> None:
    """120 samples in each of the last 70 minutes, half of it in the half minute that is open, are 2 a second."""
    minutes = {MINUTE - back: {"stored": 120} for back in range(1, 71)} | {MINUTE: {"stored": 60}}
    for window in figures.WINDOWS_MINUTES:
        assert figures.rates(minutes, NOW, window).samples == pytest.approx(2.0)


def test_a_young_run_is_not_diluted_by_the_time_before_it() -> None:
    """A run that began 90 s ago divides by 90 s, not by the hour, so that its ETA is right from the start."""
    minutes = {MINUTE - 1: {"batches": 4, "stored": 60}, MINUTE: {"stored": 30}}
    assert figures.rates(minutes, NOW, 60).samples == pytest.approx(1.0)


@given(st.dictionaries(st.integers(MINUTE - 200, MINUTE), st.integers(0, 10_000), max_size=80))
def test_rates_never_exceed_what_was_counted(stored: dict[int, int]) -> None:
    """A window's samples are at most all samples, and never negative."""
    minutes = {minute: {"stored": count} for minute, count in stored.items() if count}
    for window in figures.WINDOWS_MINUTES:
        found = figures.rates(minutes, NOW, window).samples
        assert 0 <= found * 10 <= sum(stored.values()) + 1e-6


def test_percent_is_never_rounded_up_to_a_hundred() -> None:
    """999,999 of a million is 99.9 %: 100 means all."""
    assert make_run({"unique": 1_000_000, "stored": 999_999}).percent == 99.9
    assert make_run({"unique": 1_000_000, "stored": 1_000_000}).percent == 100.0


def test_eta_counts_what_has_no_outcome_yet() -> None:
    """Rejected and dead samples will not be stored; at no rate there is no ETA."""
    counts = {"unique": 1000, "stored": 600, "rejected": 90, "dead": 10}
    assert figures.eta_seconds(counts, figures.Rates(5, samples=3.0)) == pytest.approx(100.0)
    assert figures.eta_seconds(counts, figures.Rates(5)) is None
    assert figures.eta_seconds(counts | {"stored": 900}, figures.Rates(5)) == 0.0


@pytest.mark.parametrize(
    ("counts", "waiting", "quiet", "queues", "nodes", "expected"),
    [
        ({}, 0, None, (), (), "empty"),
        ({"unique": 5, "stored": 5}, 0, 900.0, (), (), "done"),
        ({"unique": 5, "stored": 2}, 1, 5.0, (), (), "running"),
        ({"unique": 5, "stored": 2}, 1, 200.0, (Queue("extract", waiting=1),), (), "stalled"),
        ({"unique": 5}, 1, 400.0, (), (Node("n", engine_state="starting", updated_seconds=1.0),), "starting"),
        ({"unique": 5}, 1, 400.0, (), (Node("n", engine_state="starting", updated_seconds=99.0),), "stalled"),
        ({"unique": 5}, 1, 400.0, (Queue("extract", dead=1),), (), "dead"),
        ({"unique": 5}, 2, 400.0, (Queue("extract", dead=1, waiting=1),), (), "stalled"),
    ],
)
def test_states(
    counts: dict[str, int],
    waiting: int,
    quiet: float | None,
    queues: tuple[Queue, ...],
    nodes: tuple[Node, ...],
    expected: str,
) -> None:
    """One word for where a run stands, for each way it can stand."""
    assert figures.run_state(counts, waiting, quiet, queues, nodes) == expected


@pytest.mark.parametrize(
    ("queues", "nodes", "expected"),
    [
        ((Queue("extract", waiting=9, working=2),), (), "Engines"),
        ((Queue("extract", working=2),), (), "Engines"),
        ((Queue("extract"),), (), "Producer"),
        ((Queue("extract"), Queue("store.n", waiting=2)), (), "Storage"),
        ((Queue("extract", waiting=9), Queue("store.n", waiting=3, oldest_waiting_seconds=90.0)), (), "Storage"),
        ((Queue("extract", waiting=9),), (Node("n", spool_bytes=95, spool_max_bytes=100),), "Storage"),
    ],
)
def test_the_narrow_stage(queues: tuple[Queue, ...], nodes: tuple[Node, ...], expected: str) -> None:
    """The rightmost stage that others wait for, and exactly one is marked."""
    run = make_run({"unique": 9})
    numbers = make_numbers(run, queues, nodes)
    assert narrow_stage(numbers, run) == expected
    assert [stage.name for stage in stages(numbers, run) if stage.is_narrow] == [expected]


@pytest.mark.parametrize("said", ["paused", "cancelled", "closed"])
def test_a_persons_word_for_a_run_goes_first(said: str) -> None:
    """Whatever the numbers say, the page has a sentence for it and marks no stage."""
    assert figures.run_state({"unique": 5}, 3, 900.0, (), (), said) == said
    run = make_run({"unique": 9}, state=said)
    assert wording.state(run) and narrow_stage(make_numbers(run, (Queue("extract", waiting=3),)), run) is None


def test_nothing_is_narrow_when_all_is_done() -> None:
    """A finished run waits for nothing."""
    run = make_run({"unique": 9}, state="done")
    assert narrow_stage(make_numbers(run), run) is None


def hostile_numbers() -> tuple[Numbers, Run]:
    text = '<script>alert("x")</script>'
    run = make_run({"unique": 10, "stored": 4, f"rejected:{text}": 1, "rejected": 1, "length:512": 4, "length:no": 1})
    node = Node(text, text, "ready", text, 5, 10, 1.0, 1.0, text)
    return make_numbers(run, (Queue("extract", dead=1), Queue(f"store.{text}", waiting=1)), (node,)), run


def test_panels_escape_every_text_from_outside() -> None:
    """Node names, messages, versions and reasons come from other machines."""
    numbers, run = hostile_numbers()
    shown = panels.what_is_wrong(numbers, run) + panels.nodes(numbers) + panels.pipeline(numbers, run)
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") >= 4


def test_metrics_are_read_by_an_openmetrics_parser() -> None:
    """Names follow the field's rules, counters end in _total, and hostile labels stay labels."""
    numbers, _ = hostile_numbers()
    body, content_type = metrics.render(numbers, "application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert "openmetrics" in content_type
    assert families["eaglefeed_samples_stored"].samples[0].name == "eaglefeed_samples_stored_total"
    assert families["eaglefeed_samples_stored"].samples[0].value == 4
    assert families["eaglefeed_samples_rejected"].samples[0].labels["reason"].startswith("<script>")
    assert sum(sample.value for sample in families["eaglefeed_run_state"].samples) == 1
    for family in families.values():
        assert family.name.startswith("eaglefeed_") and family.documentation
        if family.type == "gauge":
            assert not family.name.endswith("_total")


def test_metrics_are_read_by_a_prometheus_parser_too() -> None:
    """A scraper that asks for plain text gets plain text, with the same values."""
    body, content_type = metrics.render(hostile_numbers()[0], "text/plain")
    assert content_type.startswith("text/plain")
    samples = [sample for family in text_families(body.decode()) for sample in family.samples]
    assert [sample.value for sample in samples if sample.name == "eaglefeed_samples_unique_total"] == [10]


def test_status_as_json_is_plain_and_complete() -> None:
    """Every part of the page is in the JSON, and nothing in it needs Python to read."""
    record = json.loads(json.dumps(status.as_record(hostile_numbers()[0])))
    assert {"runs", "queues", "nodes", "stages", "dead_letters"} <= set(record)
    assert record["runs"][0]["rates"][0]["window_minutes"] == 1
    assert len(record["stages"]) == 6


def test_charts_leave_gaps_where_nothing_was_sampled() -> None:
    """A minute without a depth sample is a gap, not a zero, and a day has no more points than an hour's chart."""
    run = make_run({"unique": 1}, {MINUTE - 2: {"stored": 30}})
    numbers = Numbers(NOW, (run,), (), (), {MINUTE - 2: {"extract": 7}})
    points = charts.queue_depth(numbers, 60)["series"][0]["data"]
    assert [value for _, value in points if value is not None] == [7]
    assert len(charts.throughput(run, NOW, 1440)["series"][0]["data"]) <= charts.POINTS


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_is_loopback(host: str) -> None:
    """Names and addresses that only this machine reaches."""
    assert is_loopback(host)
    assert not Access(host, None).is_public


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "10.0.0.4", "::", "example.org", "localhost.example.org", "127.0.0.1.nip.io"]
)
def test_everything_else_is_public(host: str) -> None:
    """Also names that only look like loopback."""
    assert not is_loopback(host)


def test_the_session_is_not_the_token_and_ends_with_it() -> None:
    """The cookie holds a keyed hash; another token makes another one; a wrong one lets nobody in."""
    first, second = Access("0.0.0.0", "a" * 20), Access("0.0.0.0", "b" * 20)
    assert "a" * 20 not in first.session() and first.session() != second.session()
    assert first.is_signed_in({"cookie": f"eaglefeed_session={first.session()}"})
    assert first.is_signed_in({"authorization": "Bearer " + "a" * 20})
    for headers in ({}, {"cookie": f"eaglefeed_session={second.session()}"}, {"authorization": "Bearer wrong"}):
        assert not first.is_signed_in(headers)
    assert not Access("127.0.0.1", None).is_signed_in({"cookie": f"eaglefeed_session={Access('', None).session()}"})


def test_passwords_in_a_dead_letters_reason_are_hidden() -> None:
    """An error that quotes an address shows it without its password; broken meta is no reason to fail."""
    meta = json.dumps({"reason": "cannot reach redis://user:s3cret@host:1/0", "kind": "EngineGone", "node": "n1"})
    letter = dead_letters._letter("id", "extract", (b"r: 3 samples", meta.encode(), b""), [])
    assert letter.reason == "EngineGone: cannot reach redis://***@host:1/0"
    assert letter.where == "queue extract, node n1"
    assert dead_letters._letter("id", "extract", (None, b"[", None), []).reason == "no reason was kept"


def test_a_node_says_what_it_runs_on(tmp_path: Path) -> None:
    """The driver's own words, counted; cpu where there is no GPU or none is wanted."""
    for place in range(2):
        (tmp_path / str(place)).mkdir()
        (tmp_path / str(place) / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    assert nodes.device_name("cuda", tmp_path) == "NVIDIA H200 x 2"
    assert nodes.device_name("auto", tmp_path / "none") == "cpu"
    assert nodes.device_name("cpu", tmp_path) == "cpu"


def test_a_public_dashboard_without_a_token_does_not_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a usage error that says how to make a token."""
    monkeypatch.delenv("EAGLEFEED_DASHBOARD_TOKEN", raising=False)
    assert cli.main(["dashboard", "--host", "0.0.0.0"]) == 2
    assert "openssl rand -hex 16" in capsys.readouterr().err
    monkeypatch.setenv("EAGLEFEED_DASHBOARD_TOKEN", "short")
    assert cli.main(["dashboard", "--host", "0.0.0.0"]) == 2
    assert "shorter than 16" in capsys.readouterr().err
