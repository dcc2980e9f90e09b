"""Addresses and secrets, read from the environment in this one place."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit, urlunsplit

from config.names import checked_name


def redis_url() -> str:
    """``REDIS_URL``; ``rediss://`` for TLS. May hold a password: print ``without_password`` of it only."""
    return os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")


def node_name() -> str:
    """``EAGLEFEED_NODE``, else the host's name: which spool, and so which store queue, a process belongs to."""
    return checked_name(os.environ.get("EAGLEFEED_NODE") or socket.gethostname(), "node name (EAGLEFEED_NODE)")


def engine_urls() -> list[str]:
    """``EAGLEFEED_ENGINE_URL``: the addresses of this node's engines, separated by commas."""
    urls = os.environ.get("EAGLEFEED_ENGINE_URL", "http://127.0.0.1:30000")
    return [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]


def run_file() -> str | None:
    """``EAGLEFEED_RUN``: the run file of this node's workers."""
    return os.environ.get("EAGLEFEED_RUN")


def without_password(url: str) -> str:
    """``url`` as it may be logged."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    netloc = f"{parts.username or ''}:***@{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    return urlunsplit(parts._replace(netloc=netloc))
