"""What compose.yaml's variables are on one machine: loopback addresses, free ports, and secrets made here."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from local.ports import WEED_GRPC_OFFSET, free_port

_SECRETS = ("REDIS_PASSWORD", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "EAGLEFEED_DASHBOARD_TOKEN")


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


def engine_variables() -> dict[str, str]:
    port = free_port()
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
