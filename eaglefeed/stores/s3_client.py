"""A boto3 client for any S3: credentials from boto3's own chain alone, the endpoint from the environment."""

from __future__ import annotations

import os
from typing import Any

from eaglefeed.stores.interface import StoreOptions


def make_client(options: StoreOptions) -> Any:
    """The endpoint is ``S3_ENDPOINT`` or ``AWS_ENDPOINT_URL_S3``, else AWS itself; nothing is asked of it yet."""
    import boto3
    from botocore.config import Config

    endpoint = os.environ.get("S3_ENDPOINT") or os.environ.get("AWS_ENDPOINT_URL_S3") or None
    s3_options: dict[str, Any] = {"addressing_style": "path" if endpoint else "auto"}
    if endpoint and endpoint.startswith("http://"):
        # The CRC-32 is sent all the same; a SHA-256 of every part costs three times the CPU of the rest.
        s3_options["payload_signing_enabled"] = False
    session = boto3.session.Session()
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=session.region_name or ("us-east-1" if endpoint else None),
        config=Config(
            signature_version="s3v4",
            s3=s3_options,  # type: ignore[arg-type,unused-ignore]  # the stubs' own dict type is private
            retries={"mode": "adaptive", "total_max_attempts": options.max_attempts},
            max_pool_connections=max(10, 2 * options.concurrency),
            connect_timeout=10,
            read_timeout=60,
        ),
    )
