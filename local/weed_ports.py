"""The ports and sockets that SeaweedFS opens beside its own."""

from __future__ import annotations

import contextlib
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
