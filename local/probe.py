"""Health checks of compose.yaml: one GET or one PING, exit status 0 when it is answered."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 5.0


def get_url(url: str) -> int:
    """0 when a GET of ``url`` is answered with a 2xx, 1 otherwise."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            return 0 if 200 <= response.status < 300 else 1
    except (OSError, urllib.error.URLError):
        return 1


def ping_redis(port: int, password: str | None) -> int:
    """0 when the Redis at ``port`` of this machine answers PONG, 1 otherwise (also while it loads its file)."""
    request = f"AUTH {password}\r\n".encode() if password else b""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.sendall(request + b"PING\r\n")
            answer = b""
            while b"PONG" not in answer and b"-" not in answer:
                part = connection.recv(256)
                if not part:
                    return 1
                answer += part
            return 0 if b"PONG" in answer else 1
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(get_url(sys.argv[1]))
