"""Ports with all that goes with them: neighbours that must be free too, sockets that would stay in /tmp for ever."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from config import ports
from config.ports import free_port
from eaglefeed.errors import EnvironmentFault
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
    refused, accepted = free_port(0, 1, 2), free_port(1, 2)
    offered = iter([refused, accepted])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", refused + 2))
        monkeypatch.setattr(random, "randrange", lambda first, beyond: next(offered))
        assert free_port(1, 2) == accepted


@pytest.mark.parametrize(
    ("ephemeral", "highest"),
    [("32768\t60999\n", 32_767), ("20000 60999", 19_999), ("1024 65535", 65_535), ("", 32_767)],
)
def test_no_port_that_an_outgoing_connection_may_be_given(
    ephemeral: str, highest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that knocks at a server which is down could be given the server's own port, and keep it away."""
    (tmp_path / "range").write_text(ephemeral)
    monkeypatch.setattr(ports, "_EPHEMERAL_FILE", tmp_path / "range")
    asked = []
    monkeypatch.setattr(random, "randrange", lambda first, beyond: asked.append((first, beyond)) or first)
    monkeypatch.setattr(ports, "_are_free", lambda wanted: True)
    assert free_port(7) == 10_000
    assert asked == [(10_000, highest + 1 - 7)]


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not look for ever."""
    monkeypatch.setattr(ports, "_are_free", lambda wanted: False)
    with pytest.raises(EnvironmentFault, match=r"no free port on 127\.0\.0\.1 from 10000 to"):
        free_port()
