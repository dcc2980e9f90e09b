"""What compose.yaml's variables are on one machine: loopback addresses, free ports, and secrets made here."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from redis import Redis

from config import queues
from config.environment import node_name
from config.ports import free_port
from config.run import RunSettings
from local.weed_ports import WEED_GRPC_OFFSET

_OWN_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT", "AWS_DEFAULT_REGION")
_CHILD_VARIABLES = (
    "REDIS_URL",
    "EAGLEFEED_STORE",
    "EAGLEFEED_SPOOL",
    "EAGLEFEED_RUN",
    "S3_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
)
_SECRETS = ("REDIS_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "EAGLEFEED_DASHBOARD_TOKEN")


EMBEDDED = "embedded"
"""``--store embedded``: an S3 server of our own for the time of the command."""


@dataclass(frozen=True, slots=True)
class LocalAddresses:
    """Where everything is, for this command.

    Attributes:
        infrastructure: services that hold data (queue, store) and that this command starts.
        node_services: services of the GPU node, started when there is something to do.
        variables: compose.yaml's variables.
        environment: what a child process needs to know of them.
    """

    infrastructure: tuple[str, ...]
    node_services: tuple[str, ...]
    variables: dict[str, str]
    environment: dict[str, str]
    node: str
    store_url: str
    redis_url: str
    dashboard_url: str

    def connect(self) -> Redis:
        return queues.connect(self.redis_url)


def addresses_of(settings: RunSettings, parsed: argparse.Namespace, state: Path) -> LocalAddresses:
    """Choose services and addresses for ``eaglefeed run``'s options."""
    made = local_secrets(state)
    infrastructure: list[str] = []
    variables = {**made, **_own_variables(settings, Path(parsed.run))}
    if parsed.redis or os.environ.get("REDIS_URL"):
        variables["REDIS_URL"] = parsed.redis or os.environ["REDIS_URL"]
    else:
        infrastructure.append("redis")
        variables |= redis_variables(state, made["REDIS_PASSWORD"])
    store_url = parsed.store or settings.store.url
    if store_url == EMBEDDED:
        infrastructure.append("objectstore")
        variables |= objectstore_variables(state)
        store_url = "s3://eaglefeed"
    else:
        variables |= {name: os.environ[name] for name in _OWN_CREDENTIALS if name in os.environ}
        store_url = store_url if store_url.startswith("s3://") else str(Path(store_url).expanduser().resolve())
    variables |= {"EAGLEFEED_STORE": store_url, **engine_variables(settings.engine.replicas)}
    device = settings.engine.device
    gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    services = ["engine-gpu" if gpu else "engine-cpu", "extract", "store"]
    dashboard_url = ""
    if not parsed.no_dashboard:
        variables |= dashboard_variables()
        dashboard_url = f"http://127.0.0.1:{variables['DASHBOARD_PORT']}/"
        services.insert(0, "dashboard")
    environment = {name: variables[name] for name in _CHILD_VARIABLES if variables.get(name)}
    return LocalAddresses(
        tuple(infrastructure),
        tuple(services),
        variables,
        environment | {"EAGLEFEED_NODE": variables["EAGLEFEED_NODE"]},
        variables["EAGLEFEED_NODE"],
        store_url,
        variables["REDIS_URL"],
        dashboard_url,
    )


def _own_variables(settings: RunSettings, run_file: Path) -> dict[str, str]:
    return {
        "EAGLEFEED_RUN": str(run_file.resolve()),
        "EAGLEFEED_SPOOL": str(Path(settings.spool.path).expanduser().resolve()),
        "EAGLEFEED_NODE": node_name(),
        "EXTRACT_WORKERS": str(settings.workers.extract),
        "STORE_WORKERS": str(settings.workers.store),
    }


def redis_variables(folder: Path, password: str) -> dict[str, str]:
    """An embedded valkey-server whose append-only file lies in ``folder``."""
    data = folder / "redis"
    data.mkdir(parents=True, exist_ok=True)
    port = free_port()
    return {
        "REDIS_BIND": "127.0.0.1",
        "REDIS_PORT": str(port),
        "REDIS_DATA": str(data.resolve()),
        "REDIS_PASSWORD": password,
        "REDIS_URL": f"redis://:{password}@127.0.0.1:{port}/0",
    }


def objectstore_variables(folder: Path) -> dict[str, str]:
    """An embedded S3 server whose volumes lie in ``folder``."""
    data = folder / "objectstore"
    data.mkdir(parents=True, exist_ok=True)
    ports = [free_port(WEED_GRPC_OFFSET) for _ in range(4)]
    return {
        "OBJECTSTORE_HOST": "127.0.0.1",
        "OBJECTSTORE_BIND": "127.0.0.1",
        "OBJECTSTORE_DATA": str(data.resolve()),
        "WEED_MASTER_PORT": str(ports[0]),
        "WEED_VOLUME_PORT": str(ports[1]),
        "WEED_FILER_PORT": str(ports[2]),
        "S3_PORT": str(ports[3]),
        "S3_ENDPOINT": f"http://127.0.0.1:{ports[3]}",
    }


def objectstore_ports(variables: Mapping[str, str]) -> list[int]:
    """The ports of the embedded S3 server, [] where there is none."""
    wanted = ("WEED_MASTER_PORT", "WEED_VOLUME_PORT", "WEED_FILER_PORT", "S3_PORT")
    return [int(variables[name]) for name in wanted if name in variables]


def engine_variables(num_replicas: int) -> dict[str, str]:
    """Replicas listen on consecutive ports; the first one's URL stands for all (``config.environment``)."""
    port = free_port(*range(1, num_replicas))
    return {"ENGINE_BIND": "127.0.0.1", "ENGINE_PORT": str(port), "EAGLEFEED_ENGINE_URL": f"http://127.0.0.1:{port}"}


def dashboard_variables() -> dict[str, str]:
    return {"DASHBOARD_BIND": "127.0.0.1", "DASHBOARD_PORT": str(free_port())}


def local_secrets(folder: Path) -> dict[str, str]:
    """Random secrets, made once and kept in a file that only this user can read: other users stay out of loopback."""
    path = folder / "secrets.json"
    if path.exists():
        kept: dict[str, str] = json.loads(path.read_text("utf-8"))
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: secrets.token_hex(16) for name in _SECRETS}
    temporary = path.with_suffix(".part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(made, file)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)
    return made
