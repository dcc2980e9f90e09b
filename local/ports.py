"""Free ports on loopback."""

from __future__ import annotations

import socket

WEED_GRPC_OFFSET = 10_000
"""SeaweedFS opens port + 10000 beside each of its ports."""


def free_port(offset: int = 0) -> int:
    """A port that is free now on 127.0.0.1, and ``port + offset`` with it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            if not offset:
                return port
            try:
                second.bind(("127.0.0.1", port + offset))
            except (OSError, OverflowError):
                continue
            return port
