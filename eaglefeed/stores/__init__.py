"""Where shards live: one small interface over a directory and any S3."""

from __future__ import annotations

from eaglefeed.stores.interface import ObjectInfo, Store, StoreOptions, Unfinished

__all__ = ["ObjectInfo", "Store", "StoreOptions", "Unfinished", "open_store"]


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """Open ``s3://bucket/prefix`` or a directory (a path or ``file://``). Nothing is asked of it yet."""
    if url.startswith("s3://"):
        from eaglefeed.stores.s3 import S3Store

        return S3Store.from_url(url, options or StoreOptions())
    from eaglefeed.stores.directory import DirectoryStore

    return DirectoryStore(url.removeprefix("file://"))
