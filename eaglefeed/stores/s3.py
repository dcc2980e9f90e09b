"""A store in any S3 (AWS, MinIO, SeaweedFS, R2, Ceph), through boto3's classic transfer client.

boto3's CRT client ignores ``endpoint_url``, so the classic one is asked for by name.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from eaglefeed.checksum import checksum as checksum_of
from eaglefeed.checksum import from_base64, stream_checksum, to_base64
from eaglefeed.errors import CorruptData, EaglefeedError, EnvironmentFault, StoreUnavailable, UsageError
from eaglefeed.stores.interface import ObjectInfo, StoreOptions, Unfinished, checked_key
from eaglefeed.stores.s3_client import make_client
from eaglefeed.stores.s3_errors import error_code, translated

Result = TypeVar("Result")

_EXISTS = ("PreconditionFailed", "412")
_CONFLICT = ("ConditionalRequestConflict", "409")
_NO_CONDITIONS = ("NotImplemented", "501", "InvalidArgument", "UnsupportedHeader")
_MISSING = ("404", "NoSuchKey", "NotFound")
_READ_ATTEMPTS = 4
_READ_BYTES = 1 << 20


class S3Store:
    """Objects below ``prefix`` of a bucket. One client for all threads."""

    def __init__(self, client: Any, bucket: str, prefix: str, options: StoreOptions) -> None:
        self.url = f"s3://{bucket}" + (f"/{prefix}" if prefix else "")
        self._client, self._bucket, self._options = client, bucket, options
        self._prefix = prefix + "/" if prefix else ""
        self._conditional = True
        self._create_only: set[str] = set()
        for operation in ("PutObject", "CompleteMultipartUpload"):
            client.meta.events.register(f"provide-client-params.s3.{operation}", self._add_condition)

    @classmethod
    def from_url(cls, url: str, options: StoreOptions) -> S3Store:
        """Open ``s3://bucket/prefix``; nothing is asked of the server yet."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if "@" in bucket:  # not repeated in the message, which is logged
            raise UsageError(
                f"a store's URL holds no credentials: write s3://{bucket.rpartition('@')[2]}/{prefix} and set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if not bucket:
            raise EnvironmentFault(f"{url!r} names no bucket; write s3://bucket or s3://bucket/prefix")
        return cls(make_client(options), bucket, prefix.strip("/"), options)

    def check(self) -> str:
        """Raises EnvironmentFault for a missing bucket or missing rights: some servers create buckets unasked."""
        self._call("", lambda: self._client.head_bucket(Bucket=self._bucket))
        key = f".eaglefeed-check-{secrets.token_hex(4)}"
        self._conditional = True
        try:
            first, second = self.create(key, b"check"), self.create(key, b"again")
        finally:
            self.delete(key)
        if first and not second and self._conditional:
            return "create is a PUT with If-None-Match, which this store honours"
        self._conditional = False
        return (
            "this store does not honour If-None-Match: create looks first, writes and reads back, so of two nodes "
            "that race on one batch both may write, and the audit leaves one copy out"
        )

    def put_file(self, key: str, path: Path, checksum: str, create_only: bool = False) -> ObjectInfo:
        from boto3.s3.transfer import TransferConfig

        transfer = TransferConfig(
            preferred_transfer_client="classic",
            multipart_threshold=self._options.part_bytes,
            multipart_chunksize=self._options.part_bytes,
            max_concurrency=self._options.concurrency,
        )
        arguments = {"ChecksumCRC32": to_base64(checksum)}
        full_key = self._full(key)
        if create_only and self.head(key) is not None:  # looked for first: a shard takes longer to send than a HEAD
            raise FileExistsError(f"{self.url}/{key}")
        if create_only and self._conditional:
            self._create_only.add(full_key)
        try:
            self._call(
                key,
                lambda: self._client.upload_file(
                    str(path), self._bucket, full_key, Config=transfer, ExtraArgs=arguments
                ),
            )
        except EaglefeedError as error:
            if error_code(error) in _EXISTS:
                raise FileExistsError(f"{self.url}/{key}") from error
            if full_key not in self._create_only or error_code(error) not in _NO_CONDITIONS:
                raise
            self._conditional = False  # this store takes no condition: the look before has to do
            self._create_only.discard(full_key)
            return self.put_file(key, path, checksum, create_only)
        finally:
            self._create_only.discard(full_key)
        return self._verified(key, path.stat().st_size, checksum)

    def create(self, key: str, data: bytes) -> bool:
        if not self._conditional:
            return self._create_without_condition(key, data)
        for _ in range(_READ_ATTEMPTS):
            try:
                self._call(key, lambda: self._put(key, data, IfNoneMatch="*"))
                return True
            except EaglefeedError as error:
                code = error_code(error)
                if code in _EXISTS:
                    return False
                if code in _NO_CONDITIONS:
                    self._conditional = False
                    return self._create_without_condition(key, data)
                if code not in _CONFLICT:
                    raise
        raise StoreUnavailable(f"{self.url}/{key}: the store reports a conflict again and again")

    def get(self, key: str) -> bytes:
        return self._read(key, {})

    def get_range(self, key: str, start: int, end: int) -> bytes:
        data = self._read(key, {"Range": f"bytes={start}-{end - 1}"}) if end > start else b""
        if len(data) != end - start:
            raise CorruptData(f"{self.url}/{key}: {len(data)} bytes from {start}, not {end - start}: it is cut")
        return data

    def head(self, key: str) -> ObjectInfo | None:
        try:
            answer = self._call(
                key,
                lambda: self._client.head_object(Bucket=self._bucket, Key=self._full(key), ChecksumMode="ENABLED"),
            )
        except FileNotFoundError:
            return None
        return ObjectInfo(key, answer["ContentLength"], _whole_checksum(answer))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        iterator = iter(pages)
        while (page := self._call(prefix, lambda: next(iterator, None))) is not None:
            for item in page.get("Contents", ()):
                key = item["Key"].removeprefix(self._prefix)
                yield ObjectInfo(key, item["Size"], "", item["LastModified"].timestamp())

    def checksum(self, key: str) -> str:
        found = self.head(key)
        if found is None:
            raise FileNotFoundError(f"{self.url}/{key}: no such object")
        return found.checksum or self._read_checksum(key)

    def delete(self, key: str) -> None:
        self._call(key, lambda: self._client.delete_object(Bucket=self._bucket, Key=self._full(key)))

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix
        )
        iterator = iter(pages)
        while (page := self._call(prefix, lambda: next(iterator, None))) is not None:
            for item in page.get("Uploads", ()):
                key = item["Key"].removeprefix(self._prefix)
                yield Unfinished(key, item["UploadId"], item["Initiated"].timestamp())

    def discard(self, unfinished: Unfinished) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call(
                unfinished.key,
                lambda: self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._full(unfinished.key), UploadId=unfinished.upload_id
                ),
            )

    def _add_condition(self, params: dict[str, Any], **_: Any) -> None:
        """s3transfer passes no If-None-Match on, so it is put into the request here, for keys made at most once."""
        if params.get("Key") in self._create_only:
            params["IfNoneMatch"] = "*"

    def _full(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _put(self, key: str, data: bytes, **condition: str) -> Any:
        return self._client.put_object(
            Bucket=self._bucket,
            Key=self._full(key),
            Body=data,
            ChecksumCRC32=to_base64(checksum_of(data)),
            **condition,
        )

    def _create_without_condition(self, key: str, data: bytes) -> bool:
        if self.head(key) is not None:
            return False
        self._call(key, lambda: self._put(key, data))
        return self.get(key) == data

    def _verified(self, key: str, num_bytes: int, checksum: str) -> ObjectInfo:
        """Compare with what the store reports; where it reports no CRC-32 of the whole, read the object back."""
        found = self.head(key)
        if found is None or found.num_bytes != num_bytes:
            raise CorruptData(f"{self.url}/{key}: the store has {found and found.num_bytes} bytes of {num_bytes}")
        reported = found.checksum or self._read_checksum(key)
        if reported != checksum:
            raise CorruptData(f"{self.url}/{key}: the store has {reported}, and {checksum} was sent")
        return ObjectInfo(key, num_bytes, reported)

    def _read_checksum(self, key: str) -> str:
        def read() -> str:
            body = self._client.get_object(Bucket=self._bucket, Key=self._full(key))["Body"]
            return stream_checksum(body.iter_chunks(_READ_BYTES))

        return self._call(key, read)

    def _read(self, key: str, arguments: dict[str, str]) -> bytes:
        """An answer that breaks off in its body is asked for again; boto3 only repeats the request's beginning."""
        full_key = self._full(key)

        def read() -> bytes:
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=full_key, **arguments)["Body"].read()
            return data

        for attempt in range(_READ_ATTEMPTS):
            try:
                return self._call(key, read)
            except StoreUnavailable:
                if attempt == _READ_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _call(self, key: str, request: Callable[[], Result]) -> Result:
        try:
            return request()
        except Exception as error:  # boto3's, botocore's and urllib3's errors have no common root
            known = translated(error, f"{self.url}/{key}".rstrip("/"), self._bucket)
            if known is None:
                raise
            raise known from error


def _whole_checksum(answer: dict[str, Any]) -> str:
    return from_base64(answer.get("ChecksumCRC32", "")) if answer.get("ChecksumType") != "COMPOSITE" else ""
