"""Ports with all that goes with them: neighbours that must be free too, sockets that would stay in /tmp for ever."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from config.ports import free_port
from local.addresses import objectstore_ports
from local.weed_ports import no_weed_sockets_left


def test_a_stopped_seaweedfs_leaves_no_socket() -> None:
    """Those named by its ports and by the gRPC ports above them are removed; another server's stays."""
    ours, other = free_port(10_000), free_port(10_000)
    variables = {"S3_PORT": str(ours), "REDIS_PORT": str(other)}
    left = [Path(f"/tmp/seaweedfs-{kind}-{ours + above}.sock") for kind, above in (("s3", 0), ("s3-grpc", 10_000))]
    stays = Path(f"/tmp/seaweedfs-filer-{other}.sock")
    try:
        with no_weed_sockets_left(objectstore_ports(variables)):
            for path in [*left, stays]:
                path.touch()
        assert not any(path.exists() for path in left)
        assert stays.exists()
    finally:
        stays.unlink(missing_ok=True)


def test_replicas_get_ports_that_are_all_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """They listen on consecutive ports: a first port whose neighbour is taken is not offered."""
    refused = free_port(1, 2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", refused + 2))
        offered = iter([refused, free_port(1, 2)])
        bind = socket.socket.bind

        def bind_where_we_say(self: socket.socket, address: Any) -> None:
            bind(self, (address[0], address[1] or next(offered)))

        monkeypatch.setattr(socket.socket, "bind", bind_where_we_say)
        port = free_port(1, 2)
    assert refused + 2 not in range(port, port + 3)
