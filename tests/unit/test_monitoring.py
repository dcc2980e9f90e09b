"""docs/monitoring/: the rules and the Grafana board name metrics that /metrics really has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dashboard import metrics
from dashboard.figures import Node, Numbers, Queue, Rates, Run

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "monitoring"


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Sample name → its labels."""
    run = Run("r", {"unique": 3, "rejected:x": 1, "dead:y": 1}, 1, (Rates(5),), "running", 1.0, 2.0)
    node = Node("n", "NVIDIA", "ready", "sglang", 1, 2, 1.0, 1.0)
    body, _ = metrics.render(Numbers(0.0, (run,), (Queue("extract"),), (node,)))
    samples = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


def expressions() -> list[str]:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    board = json.loads((FOLDER / "grafana.json").read_text())
    return [rule["expr"] for rule in rules] + [
        target["expr"] for panel in board["panels"] for target in panel["targets"]
    ]


def test_rules_and_board_ask_for_metrics_that_exist(exported: dict[str, set[str]]) -> None:
    """Every eaglefeed_ name in every expression is exported, and so is every label that is selected by."""
    for expression in expressions():
        names = re.findall(r"\beaglefeed_\w+", expression)
        assert names and set(names) <= set(exported), expression
        for name, selector in re.findall(r"\b(eaglefeed_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", selector)) <= exported[name], expression


def test_the_three_alerts_say_what_to_do() -> None:
    """Stalled, rejecting, spool full: each with a severity, a summary and a description."""
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == ["EaglefeedStalled", "EaglefeedRejecting", "EaglefeedSpoolFull"]
    for rule in rules:
        assert rule["labels"]["severity"] and rule["annotations"]["summary"] and rule["annotations"]["description"]


def test_promtool_accepts_the_rules() -> None:
    """Prometheus' own checker, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")
    subprocess.run([promtool, "check", "rules", str(FOLDER / "alerts.yml")], check=True, timeout=60)


FIRING = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{ series: 'eaglefeed_run_state{{run="a",state="stalled"}}', values: '1x40' }}
      - {{ series: 'eaglefeed_run_state{{run="b",state="stalled"}}', values: '0x40' }}
      - {{ series: 'eaglefeed_samples_stored_total{{run="a"}}', values: '0+90x40' }}
      - {{ series: 'eaglefeed_samples_stored_total{{run="b"}}', values: '0+99x40' }}
      - {{ series: 'eaglefeed_samples_rejected_total{{run="a",reason="short-dump"}}', values: '0+10x40' }}
      - {{ series: 'eaglefeed_samples_rejected_total{{run="b",reason="short-dump"}}', values: '0+1x40' }}
      - {{ series: 'eaglefeed_spool_bytes{{node="n1"}}', values: '95x40' }}
      - {{ series: 'eaglefeed_spool_limit_bytes{{node="n1"}}', values: '100x40' }}
      - {{ series: 'eaglefeed_spool_bytes{{node="n2"}}', values: '0x40' }}
      - {{ series: 'eaglefeed_spool_limit_bytes{{node="n2"}}', values: '0x40' }}
    promql_expr_test:
      - expr: 'count by (alertname) (ALERTS{{alertstate="firing"}})'
        eval_time: 35m
        exp_samples:
          - {{ labels: '{{alertname="EaglefeedRejecting"}}', value: 1 }}
          - {{ labels: '{{alertname="EaglefeedSpoolFull"}}', value: 1 }}
          - {{ labels: '{{alertname="EaglefeedStalled"}}', value: 1 }}
      - expr: 'count(ALERTS{{run="b"}}) or count(ALERTS{{node="n2"}}) or vector(0)'
        eval_time: 35m
        exp_samples:
          - {{ labels: '{{}}', value: 0 }}
"""


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """In Prometheus' own rule engine: a sick run and node raise one alert each, their healthy neighbours none."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")
    path = tmp_path / "firing.yml"
    path.write_text(FIRING.format(rules=FOLDER / "alerts.yml"))
    ended = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
