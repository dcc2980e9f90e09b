"""What an embedded SeaweedFS would leave in /tmp for ever."""

from __future__ import annotations

from pathlib import Path

from local.addresses import objectstore_ports
from local.ports import free_port, no_weed_sockets_left


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
