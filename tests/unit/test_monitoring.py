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
    run = Run("r", {"unique": 2, "rejected:x": 1}, 1, (Rates(5),), "running", 1.0, 2.0)
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
