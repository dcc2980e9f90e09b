"""Secrets of an operator's environment stay out of the page, its live socket, /metrics and `eaglefeed status`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from config import names, nodes
from config.ports import free_port
from eaglefeed.errors import UsageError
from eaglefeed.stores import open_store
from tests.browser import CHECKOUT, Dashboard, open_browser, wait_for, why_no_browser
from tests.scenes import Scene, fail_jobs, play
from tests.services import Valkey

PASSWORD = "planted-Redis-Pass-1"
PLANTED = {
    "AWS_ACCESS_KEY_ID": "PLANTEDACCESSKEY",
    "AWS_SECRET_ACCESS_KEY": "planted-S3-Secret-2",
    "AWS_SESSION_TOKEN": "planted-S3-Session-3",
    "S3_ENDPOINT": "http://somebody:planted-Endpoint-Pass-4@127.0.0.1:9",
    "EAGLEFEED_STORE": "s3://PLANTEDURLKEY:planted-Url-Secret-5@bucket/runs",
    "HF_TOKEN": "planted-Hub-Token-6",
    "EAGLEFEED_DASHBOARD_TOKEN": "planted-Page-Token-7",
}
WORDS = ("planted-",)
PATHS = ("/", "/login", "/metrics", "/status.json", "/healthz", "/no-such-page")


@dataclass(frozen=True, slots=True)
class Planted:
    """A Redis with a password, and a run in it whose messages and dead letters quote every secret."""

    server: Valkey
    redis: Redis
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return self.environment["REDIS_URL"]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    server = Valkey(tmp_path / "valkey")
    server.start()
    Redis.from_url(server.url).config_set("requirepass", PASSWORD)
    url = server.url.replace("//", f"//:{PASSWORD}@")
    environment = {**PLANTED, "REDIS_URL": url, "RQ_REDIS_URL": url}
    redis = Redis.from_url(url)
    everything = " ".join(environment.values())
    play(redis, Scene(run="planted", working=2))
    fail_jobs(redis, 1)
    letter = redis.zrange("rq:failed:extract", 0, 0)[0].decode()
    meta = {"kind": "StoreUnavailable", "reason": f"could not reach {everything}", "node": "gpu-01", "attempts": 1}
    redis.hset(f"rq:job:{letter}", "meta", json.dumps(meta))
    settings = {"model": {"path": "/models/Qwen3-8B"}, "store": {"url": environment["EAGLEFEED_STORE"]}}
    redis.set(names.run_key("planted"), json.dumps(settings))
    # As a node wrote it that knew nothing of these secrets: the page's own environment does.
    redis.hset(names.node_key("gpu-01"), "message", f"waits for {everything}")
    yield Planted(server, redis, environment)
    redis.close()
    server.stop(signal.SIGKILL)


def require_clean(where: str, text: str) -> None:
    places = [text.find(word) for word in WORDS if word in text]
    shown = [text[max(0, place - 60) : place + 60] for place in places]
    assert not shown, f"a secret in {where}: {shown}"


def answers(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    """What each path answers, with headers, signed in and not."""
    for path in PATHS:
        for headers in ({}, {"Authorization": f"Bearer {PLANTED['EAGLEFEED_DASHBOARD_TOKEN']}"}):
            request = urllib.request.Request(dashboard.url.rstrip("/") + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    yield path, f"{answer.headers}{answer.read().decode()}"
            except urllib.error.HTTPError as error:
                with error:
                    yield path, f"{error.headers}{error.read().decode()}"


def status(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "eaglefeed.cli", "status", *arguments]
    surroundings = {**os.environ, **environment, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, cwd=CHECKOUT, env=surroundings, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def test_neither_the_pages_answers_nor_status_show_a_secret(planted: Planted) -> None:
    """HTML, /metrics, /status.json, /healthz, `status` and its JSON; with Redis there, and with Redis away."""
    with Dashboard(planted.url, PLANTED["EAGLEFEED_DASHBOARD_TOKEN"], planted.environment) as dashboard:
        wait_for(lambda: 'run="planted"' in dict(answers(dashboard))["/metrics"], "the run in /metrics")
        found = dict(answers(dashboard))
        assert "waits for" in found["/status.json"] and "gpu-01" in found["/status.json"]
        shown = {"status --json": status(planted.environment, "--json"), "status": status(planted.environment)}
        assert '"planted"' in shown["status --json"] and "gpu-01" in shown["status"]
        assert dashboard.process is not None
        command_line = Path(f"/proc/{dashboard.process.pid}/cmdline").read_text()
        planted.server.stop(signal.SIGKILL)
        wait_for(lambda: "does not answer" in dict(answers(dashboard))["/healthz"], "the loss of Redis", 60)
        lost = {f"{path}, Redis away": text for path, text in answers(dashboard)}
        shown |= lost | {"status, Redis away": status(planted.environment, "--json")}
    assert "does not answer" in shown["status, Redis away"]
    for where, text in {**found, **shown, "ps": command_line, "its log": "".join(dashboard.log)}.items():
        require_clean(where, text)


@pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser()))
def test_what_the_browser_gets_holds_no_secret(planted: Planted, tmp_path: Path) -> None:
    """The page with a dead letter and a node's message on it, and every frame of its web socket."""
    browser = open_browser(tmp_path / "chromium")
    try:
        with Dashboard(planted.url, PLANTED["EAGLEFEED_DASHBOARD_TOKEN"], planted.environment) as dashboard:
            browser.get(dashboard.url)
            for sentence in ("could not reach", "waits for"):
                wait_for(lambda sentence=sentence: sentence in browser.page_source, f"{sentence!r} on the page")
            planted.redis.hincrby(names.count_key("planted"), "unique", 1_000)
            wait_for(lambda: "of 25,000 unique" in browser.page_source, "the page is live")
            require_clean("the page", browser.page_source)
            frames = list(received(browser))
    finally:
        browser.quit()
    assert any("25,000" in frame for frame in frames)
    for frame in frames:
        require_clean("a frame of the web socket", frame)


def received(browser: Any) -> Iterator[str]:
    """The payloads that the page's web socket was sent."""
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.webSocketFrameReceived":
            yield message["params"]["response"]["payloadData"]


def test_a_nodes_message_is_clean_in_redis_already(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node says of itself often is a library's error with an address in it; its secrets end before Redis."""
    for name, value in planted.environment.items():
        monkeypatch.setenv(name, value)
    message = f'Could not connect to the endpoint URL: "{PLANTED["S3_ENDPOINT"]}/x?uploads", {PASSWORD}'
    nodes.publish(planted.redis, "gpu-07", {"message": message})
    kept = planted.redis.hget(names.node_key("gpu-07"), "message").decode()
    assert "Could not connect" in kept and "127.0.0.1:9/x" in kept
    require_clean("Redis", kept)


def test_a_store_with_credentials_in_its_url_is_refused_without_repeating_them() -> None:
    """boto3 would take them for a bucket's name, and quote it in every error."""
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY") as caught:
        open_store(PLANTED["EAGLEFEED_STORE"])
    require_clean("the message", str(caught.value))
    assert "s3://bucket/runs" in str(caught.value) and "PLANTEDURLKEY" not in str(caught.value)


def test_a_password_in_a_query_is_a_secret_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py takes `?password=`; it is replaced in logs as any other."""
    from config.secrets import redact

    monkeypatch.setenv(
        "REDIS_URL", f"rediss://127.0.0.1:{free_port()}/0?ssl_cert_reqs=required&password=planted-Query-8"
    )
    assert redact("tried planted-Query-8 twice") == "tried *** twice"
