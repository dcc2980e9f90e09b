"""Free ports on loopback, for servers of one machine."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from eaglefeed.errors import EnvironmentFault

_LOWEST, _BEYOND = 10_000, 65_536
_EPHEMERAL_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_FROM = 32_768
"""Linux's own setting, where the file cannot be read."""
_ATTEMPTS = 1000


def free_port(*offsets: int) -> int:
    """A port that is free now on 127.0.0.1, and ``port + offset`` for each offset with it.

    None of those that the system gives to outgoing connections, unless it gives nearly all: a client that knocks at a
    server which is down could be given the server's own port, and keep it from coming back.

    Raises:
        EnvironmentFault: none is free.
    """
    widest = max((0, *offsets))
    beyond = _first_ephemeral_port()
    if beyond - widest <= _LOWEST:
        beyond = _BEYOND
    for _ in range(_ATTEMPTS):
        port = random.randrange(_LOWEST, beyond - widest)
        if _are_free({port + offset for offset in (0, *offsets)}):
            return port
    raise EnvironmentFault(f"no free port on 127.0.0.1 from {_LOWEST} to {beyond - 1} in {_ATTEMPTS} attempts")


def _first_ephemeral_port() -> int:
    try:
        return int(_EPHEMERAL_FILE.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_FROM


def _are_free(ports: set[int]) -> bool:
    with contextlib.ExitStack() as sockets:
        try:
            for port in ports:
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
