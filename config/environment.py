"""Addresses and secrets, read from the environment in this one place."""

from __future__ import annotations

import os
import re
import socket
from urllib.parse import urlsplit, urlunsplit

from config.names import checked_name
from eaglefeed.errors import UsageError


def redis_url() -> str:
    """``REDIS_URL``; ``rediss://`` for TLS. May hold a password: print ``without_password`` of it only."""
    return os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")


def node_name() -> str:
    """``EAGLEFEED_NODE``, else the host's name: which spool, and so which store queue, a process belongs to."""
    return checked_name(os.environ.get("EAGLEFEED_NODE") or socket.gethostname(), "node name (EAGLEFEED_NODE)")


def engine_urls(num_replicas: int = 1) -> list[str]:
    """``EAGLEFEED_ENGINE_URL``: the addresses of this node's engines, separated by commas.

    One address stands for all of a node's replicas: they listen on consecutive ports (``eaglefeed engine``).
    """
    text = os.environ.get("EAGLEFEED_ENGINE_URL", "http://127.0.0.1:30000")
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    if len(urls) != 1 or num_replicas == 1:
        return urls
    parts = urlsplit(urls[0])
    if parts.port is None:
        raise UsageError(f"EAGLEFEED_ENGINE_URL={urls[0]}: name the port of the first of {num_replicas} replicas")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return [urlunsplit(parts._replace(netloc=f"{host}:{parts.port + index}")) for index in range(num_replicas)]


def run_file() -> str | None:
    """``EAGLEFEED_RUN``: the run file of this node's workers."""
    return os.environ.get("EAGLEFEED_RUN")


def setting_overrides() -> dict[str, str]:
    """What a node's environment says instead of the run file: ``EAGLEFEED_STORE`` and ``EAGLEFEED_SPOOL``."""
    named = {"store.url": "EAGLEFEED_STORE", "spool.path": "EAGLEFEED_SPOOL"}
    return {setting: os.environ[variable] for setting, variable in named.items() if os.environ.get(variable)}


def s3_endpoint() -> str | None:
    """``S3_ENDPOINT`` (or boto3's own ``AWS_ENDPOINT_URL_S3``): where an S3 that is not AWS listens."""
    return os.environ.get("S3_ENDPOINT") or os.environ.get("AWS_ENDPOINT_URL_S3")


def without_password(url: str) -> str:
    """``url`` as it may be logged."""
    parts = urlsplit(url)
    parts = parts._replace(query=re.sub(r"((?:^|&)password=)[^&]+", r"\1***", parts.query))
    if parts.password is None:
        return urlunsplit(parts) if parts.query else url
    netloc = f"{parts.username or ''}:***@{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    return urlunsplit(parts._replace(netloc=netloc))
