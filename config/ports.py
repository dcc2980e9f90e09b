"""Free ports on loopback, for servers of one machine."""

from __future__ import annotations

import contextlib
import socket


def free_port(*offsets: int) -> int:
    """A port that is free now on 127.0.0.1, and ``port + offset`` for each offset with it."""
    while True:
        with contextlib.ExitStack() as sockets:
            first = sockets.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for offset in offsets:
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port + offset))
            except (OSError, OverflowError):
                continue
            return port
