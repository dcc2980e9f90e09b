"""The ledger of a run: its manifests in the store. A batch is stored when its manifest exists, and not before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eaglefeed.errors import CorruptData
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import Manifest, manifest_key, manifest_prefix, run_key
from eaglefeed.stores import Store
from eaglefeed.threads import in_order

STORE_REQUESTS = 16
"""Manifests asked for at once from a store over the network; a directory answers faster without threads."""


def ensure_run(store: Store, identity: RunIdentity) -> None:
    """Write ``run.json`` once; raises IdentityMismatch, naming the fields, when the run there is another."""
    if not store.create(run_key(identity.run), identity.to_json()):
        key = run_key(identity.run)
        identity.require_same(RunIdentity.from_json(store.get(key)), f"{store.url}/{key}")


def find_manifest(store: Store, run: str, batch_id: str) -> Manifest | None:
    """The manifest of a batch, None when it is not stored."""
    key = manifest_key(run, batch_id)
    try:
        return Manifest.from_json(store.get(key), f"{store.url}/{key}")
    except FileNotFoundError:
        return None


def publish(store: Store, manifest: Manifest) -> Manifest:
    """Commit a batch: create its manifest; when another node has been first, theirs is the one that counts."""
    if store.create(manifest_key(manifest.run, manifest.batch_id), manifest.to_json()):
        return manifest
    committed = find_manifest(store, manifest.run, manifest.batch_id)
    if committed is None:
        raise CorruptData(f"{store.url}: the manifest of batch {manifest.batch_id} exists and cannot be read")
    return committed


def batch_ids(store: Store, run: str) -> Iterator[str]:
    """The ids of all stored batches, in order, streamed."""
    for found in store.list(manifest_prefix(run)):
        name = found.key.rpartition("/")[2]
        if name.endswith(".json"):
            yield name.removesuffix(".json")


def read_texts(store: Store, run: str, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Key and text of each batch's manifest, several requests at once, few held at a time."""

    def read(batch_id: str) -> tuple[str, bytes]:
        key = manifest_key(run, batch_id)
        return key, store.get(key)

    return in_order(read, wanted, STORE_REQUESTS if store.url.startswith("s3://") else 1)


def read_manifests(store: Store, run: str, wanted: Iterable[str] | None = None) -> Iterator[Manifest]:
    """The manifests of ``wanted`` batches (all, when not given), streamed in that order."""
    for key, text in read_texts(store, run, batch_ids(store, run) if wanted is None else wanted):
        yield Manifest.from_json(text, f"{store.url}/{key}")
