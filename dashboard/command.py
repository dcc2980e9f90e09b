"""The page of progress on http://127.0.0.1:8080, /metrics for Prometheus, /status.json for scripts.

It listens on loopback. Elsewhere (--host) it needs a token, from the environment variable EAGLEFEED_DASHBOARD_TOKEN;
the token also allows to retry dead letters from the page.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys

from config import environment
from config.queues import connect
from dashboard.reading import REDIS_RETRIES
from eaglefeed.errors import EnvironmentFault, UsageError

MIN_TOKEN_LENGTH = 16
EXAMPLE = """examples:
  eaglefeed dashboard                                   http://127.0.0.1:8080
  eaglefeed dashboard --redis redis://10.0.0.5:6379/0
  EAGLEFEED_DASHBOARD_TOKEN=... eaglefeed dashboard --host 0.0.0.0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--redis", metavar="URL", help="Redis of the runs; default REDIS_URL")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1; others need a token")
    parser.add_argument("--port", type=int, default=8080, help="default 8080")
    parser.add_argument(
        "--token-env",
        default="EAGLEFEED_DASHBOARD_TOKEN",
        metavar="NAME",
        help="environment variable that holds the token; default EAGLEFEED_DASHBOARD_TOKEN",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def main(parsed: argparse.Namespace) -> int:
    import uvicorn

    from dashboard.access import Access, is_loopback
    from dashboard.app import create_app

    token = os.environ.get(parsed.token_env, "")
    if token and len(token) < MIN_TOKEN_LENGTH:
        raise UsageError(
            f"{parsed.token_env} is shorter than {MIN_TOKEN_LENGTH} characters; `openssl rand -hex 16` makes one"
        )
    if not token and not is_loopback(parsed.host):
        raise UsageError(
            f"--host {parsed.host} is open to others, so a token is needed: set {parsed.token_env} "
            "(`openssl rand -hex 16` makes one), or stay on 127.0.0.1 and use an SSH tunnel"
        )
    url = parsed.redis or environment.redis_url()
    listener = listen(parsed.host, parsed.port)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app = create_app(connect(url, REDIS_RETRIES), Access(parsed.host, token))
    if not parsed.quiet:
        where = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        print(f"eaglefeed dashboard: http://{where}:{listener.getsockname()[1]}/", file=sys.stderr, flush=True)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", server_header=False, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises EnvironmentFault when the port is taken, before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # whoever reads the address that is printed next can connect at once
    except OSError as error:
        listener.close()
        raise EnvironmentFault(f"cannot listen on {host}:{port}: {error.strerror}. Choose another --port") from error
    return listener
