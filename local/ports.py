"""Free ports on loopback, and the sockets that SeaweedFS opens beside its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

WEED_GRPC_OFFSET = 10_000
"""SeaweedFS opens port + 10000 beside each of its ports."""


@contextmanager
def no_weed_sockets_left(ports: Iterable[int]) -> Iterator[None]:
    """Remove, at the end, what a SeaweedFS on these ports leaves in /tmp; for half of it no option names a place."""
    try:
        yield
    finally:
        for port in (each + above for each in ports for above in (0, WEED_GRPC_OFFSET)):
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                with contextlib.suppress(OSError):
                    path.unlink()


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
