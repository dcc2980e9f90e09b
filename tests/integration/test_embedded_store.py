"""The store that `eaglefeed run` embeds is waited for until its bucket is there, not only until the server answers."""

from __future__ import annotations

import secrets
import threading
import time

import boto3
import pytest

from eaglefeed.errors import EaglefeedError
from local.copy_run import wait_for_store


def test_a_store_is_there_when_its_bucket_is(seaweed: dict[str, str]) -> None:
    """The server answers from the start; the bucket comes a second later, and only then is the store there."""
    bucket = f"late-{secrets.token_hex(4)}"
    client = boto3.client(
        "s3",
        endpoint_url=seaweed["S3_ENDPOINT"],
        aws_access_key_id=seaweed["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=seaweed["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )
    made_at: list[float] = []

    def make() -> None:
        client.create_bucket(Bucket=bucket)
        made_at.append(time.monotonic())

    timer = threading.Timer(1.0, make)
    timer.start()
    wait_for_store(f"s3://{bucket}", seaweed)
    timer.join()
    assert made_at
    assert time.monotonic() - made_at[0] < 10


def test_a_store_that_does_not_come_is_named(seaweed: dict[str, str]) -> None:
    """In time, and with the store's own last word."""
    with pytest.raises(EaglefeedError, match="no bucket 'never-made'"):
        wait_for_store("s3://never-made", seaweed, timeout_seconds=0.5)
