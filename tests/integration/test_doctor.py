"""`eaglefeed doctor` finds each of ten planted faults, and nothing wrong where nothing is."""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from redis import Redis

from local.engine_checks import check_sglang
from tests.services import BUCKET
from workers.sglang_plugin.inventory import HOOKS, Hook

CHECKOUT = Path(__file__).resolve().parents[2]
RUN = """
name = "doctor-test"
[model]
path = "none"
{more}
[spool]
path = "{spool}"
max_bytes = 1000000
{spool_more}
"""


def doctor(*arguments: str, **environment: str) -> tuple[int, list[dict[str, str]]]:
    """The real command's exit code and findings."""
    command = [sys.executable, "-m", "eaglefeed.cli", "doctor", "--json", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EAGLEFEED_", "REDIS_"))}
    ended = subprocess.run(
        command, cwd=CHECKOUT, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def wrong(findings: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(finding["check"], finding["fact"]) for finding in findings if finding["verdict"] == "wrong"]


def run_file(folder: Path, more: str = "", spool_more: str = "max_disk_percent = 95") -> str:
    path = folder / "run.toml"
    path.write_text(RUN.format(more=more, spool=folder / "spool", spool_more=spool_more))
    return str(path)


def test_a_sound_machine_has_nothing_wrong(valkey: str, seaweed: dict[str, str], tmp_path: Path) -> None:
    """Redis, clock, store, disk, memory, files and Python are found in order, and the exit code is 0."""
    code, findings = doctor(
        *("--run", run_file(tmp_path), "--redis", valkey, "--store", f"s3://{BUCKET}/doctor"),
        *("--only", "python", "redis", "clock", "store", "disk", "memory", "files"),
        **seaweed,
    )
    assert wrong(findings) == []
    assert code == 0


def test_a_redis_that_evicts(valkey: str) -> None:
    """1: a maxmemory-policy that forgets keys is found."""
    redis = Redis.from_url(valkey)
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        code, findings = doctor("--redis", valkey, "--only", "redis")
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert code == 1
    assert "allkeys-lru" in wrong(findings)[0][1]


class _OldRedis(socketserver.StreamRequestHandler):
    """Answers as a Redis 5 does; no such server can be had from PyPI."""

    def handle(self) -> None:
        info = (
            b"redis_version:5.0.14\r\nused_memory:1000\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1"
        )
        while line := self.rfile.readline():
            words = [self._bulk() for _ in range(int(line[1:]))]
            name = words[0].upper()
            if name == b"INFO":
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(info), info))
            elif name == b"CONFIG":
                self.wfile.write(b"*0\r\n")
            elif name == b"HELLO":
                self.wfile.write(b"-ERR unknown command 'HELLO'\r\n")
            else:
                self.wfile.write(b"+OK\r\n")

    def _bulk(self) -> bytes:
        length = int(self.rfile.readline()[1:])
        return self.rfile.read(length + 2)[:-2]


@pytest.fixture
def old_redis() -> Iterator[str]:
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldRedis) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0?protocol=2"
        server.shutdown()


def test_an_old_redis(old_redis: str) -> None:
    """2: a Redis before 6.2 is found."""
    code, findings = doctor("--redis", old_redis, "--only", "redis")
    assert code == 1
    assert "version 5.0.14" in wrong(findings)[0][1]


def test_a_store_without_the_right_to_write(seaweed: dict[str, str]) -> None:
    """3: credentials that the store refuses are found, with the variables to look at."""
    refused = {**seaweed, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}
    code, findings = doctor("--store", f"s3://{BUCKET}/doctor", "--only", "store", **refused)
    assert code == 1
    assert wrong(findings)[0][0] == "store"
    assert "AWS_SECRET_ACCESS_KEY" in findings[0]["advice"]
    assert "not-the-secret" not in json.dumps(findings)


class _OverwritingS3(BaseHTTPRequestHandler):
    """A store that takes If-None-Match and overwrites all the same, as some servers do."""

    objects: dict[str, bytes] = {}  # noqa: RUF012  # the handler is made anew for each request
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            size, _, rest = raw.partition(b"\r\n")
            raw = rest[: int(size.split(b";")[0], 16)]
        self.objects[self._key()] = raw
        self._answer(200, etag=True)

    def do_GET(self) -> None:
        found = self.objects.get(self._key())
        self._answer(404 if found is None else 200, found or b"")

    def do_HEAD(self) -> None:
        is_bucket = self._key().count("/") < 2
        self._answer(200 if is_bucket or self._key() in self.objects else 404, head=self.objects.get(self._key(), b""))

    def do_DELETE(self) -> None:
        self.objects.pop(self._key(), None)
        self._answer(204)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _key(self) -> str:
        return self.path.partition("?")[0]

    def _answer(self, status: int, body: bytes = b"", head: bytes = b"", etag: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body or head)))
        if etag or status == 200:
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Sun, 29 Nov 2026 16:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def overwriting_s3() -> Iterator[dict[str, str]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OverwritingS3) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "S3_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        server.shutdown()


def test_a_store_that_ignores_conditional_create(overwriting_s3: dict[str, str]) -> None:
    """4: a store that writes a key twice although asked for once is found."""
    code, findings = doctor("--store", "s3://bucket/doctor", "--only", "store", **overwriting_s3)
    assert code == 1
    assert "If-None-Match" in wrong(findings)[0][1]


def test_a_missing_hook() -> None:
    """5: a hook whose target SGLang lacks, or takes other parameters, is found and what breaks is said."""
    gone = Hook("sglang.srt.managers.scheduler.Scheduler.no_such_method", "receipts.gone", ("self",), "nothing works")
    other = Hook(HOOKS[0].target, HOOKS[0].function, ("self", "other"), "the model is read wrongly")
    found = [finding for finding in check_sglang([gone, other]) if finding.verdict == "wrong"]
    assert ["no_such_method" in found[0].fact, "was expected with" in found[1].fact] == [True, True]
    assert "nothing works" in found[0].advice


def test_a_spool_on_a_full_disk(tmp_path: Path) -> None:
    """6: a disk fuller than the spool's limit allows is found; the limit is set below what every disk holds."""
    code, findings = doctor("--run", run_file(tmp_path, spool_more="max_disk_percent = 0.0001"), "--only", "disk")
    assert code == 1
    assert "disk is full" in wrong(findings)[0][1]


def test_a_spool_that_cannot_be_written() -> None:
    """A spool where nothing can be written is found too (here: in /proc)."""
    code, findings = doctor("--only", "disk", EAGLEFEED_SPOOL="/proc/eaglefeed-spool")
    assert (code, wrong(findings)[0][0]) == (1, "disk")


def test_no_gpu_though_configured(tmp_path: Path) -> None:
    """7: device = "cuda" on a machine without nvidia-smi is found."""
    settings = run_file(tmp_path, more='[engine]\ndevice = "cuda"')
    code, findings = doctor("--run", settings, "--only", "gpu", PATH=str(tmp_path))
    assert code == 1
    assert "no GPU" in wrong(findings)[0][1]


def test_too_few_gpus(tmp_path: Path) -> None:
    """Eight GPUs wanted and two there, as a driver's own tool says it."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "NVIDIA H200, 570.1, 143771 MiB"\necho "NVIDIA H200, 570.1, 143771 MiB"\n')
    tool.chmod(0o755)
    settings = run_file(tmp_path, more='[engine]\ndevice = "cuda"\ntensor_parallel = 8')
    code, findings = doctor("--run", settings, "--only", "gpu", PATH=f"{tmp_path}:/bin:/usr/bin")
    assert code == 1
    assert wrong(findings)[0][1].startswith("2 GPUs, but")


def test_a_gpu_that_torch_cannot_use(tmp_path: Path) -> None:
    """A driver shows a GPU and torch sees none: here because there is none."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU that torch can use")
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "NVIDIA H200, 570.1, 143771 MiB"\n')
    tool.chmod(0o755)
    settings = run_file(tmp_path, more='[engine]\ndevice = "cuda"')
    code, findings = doctor("--run", settings, "--only", "gpu", PATH=f"{tmp_path}:/bin:/usr/bin")
    assert code == 1
    assert "sees no GPU although the driver does" in wrong(findings)[0][1]


def test_a_clock_that_is_off(valkey: str, tmp_path: Path) -> None:
    """8: a clock 90 s from Redis' is found; it is shifted in the doctor's own process, the machine's stays."""
    (tmp_path / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 90\n")
    code, findings = doctor("--redis", valkey, "--only", "clock", PYTHONPATH=f"{tmp_path}:{CHECKOUT}")
    assert code == 1
    assert re.search(r"(89|90) s ahead", wrong(findings)[0][1])


def test_a_port_that_is_taken() -> None:
    """9: something else on the engine's port is found, with the command that names it."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, findings = doctor("--only", "ports", EAGLEFEED_ENGINE_URL=f"http://127.0.0.1:{port}")
    assert code == 1
    assert f"{port}, the engine's port, is taken" in wrong(findings)[0][1]


def test_the_wrong_sglang_version(tmp_path: Path) -> None:
    """10: an installed SGLang of another version is found, with the version to install."""
    folder = tmp_path / "sglang-0.4.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.4.9\n")
    code, findings = doctor("--only", "sglang", PYTHONPATH=f"{tmp_path}:{CHECKOUT}")
    assert code == 1
    assert "SGLang 0.4.9" in wrong(findings)[0][1]
    assert "sglang==0.5.23" in findings[0]["advice"]


def test_a_redis_that_is_not_there() -> None:
    """No server at all is a finding, not a traceback; and its password stays unprinted."""
    code, findings = doctor("--redis", "redis://:hidden-word@127.0.0.1:1/0", "--only", "redis", "clock")
    assert code == 1
    assert "does not answer" in wrong(findings)[0][1]
    assert "hidden-word" not in json.dumps(findings)
