"""What one manifest promises, against what its shard is."""

from __future__ import annotations

from dataclasses import dataclass

from eaglefeed.errors import CorruptData, IdentityMismatch
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import Manifest, StoredSample
from eaglefeed.records import sample_id
from eaglefeed.shard import ShardReader
from eaglefeed.stores import Store
from storage.audit_report import Problem


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """A manifest, those of its samples that are whole, and what is wrong with the others."""

    manifest: Manifest
    whole: list[StoredSample]
    num_short: int
    problems: list[Problem]


def check_manifest(
    store: Store, identity: RunIdentity | None, manifest: Manifest, shard_bytes: int, deep: bool
) -> CheckedManifest:
    """What one manifest promises against what its shard is; ``deep`` reads the shard."""
    if manifest.samples and shard_bytes != manifest.shard_bytes:
        found = "is not there" if shard_bytes < 0 else f"has {shard_bytes} bytes of {manifest.shard_bytes}"
        return CheckedManifest(manifest, [], 0, [Problem("shard", f"{store.url}/{manifest.shard} {found}")])
    whole = [sample for sample in manifest.samples if sample.num_rows == sample.num_tokens]
    problems = [
        Problem(
            "short",
            f"sample {sample.id} of batch {manifest.batch_id}: {sample.num_rows} rows, {sample.num_tokens} tokens",
        )
        for sample in manifest.samples
        if sample.num_rows != sample.num_tokens
    ]
    num_short = len(problems)
    if deep and whole:
        whole, damage = _readable(store, identity, manifest, whole)
        problems += damage
    return CheckedManifest(manifest, whole, num_short, problems)


def _readable(
    store: Store, identity: RunIdentity | None, manifest: Manifest, samples: list[StoredSample]
) -> tuple[list[StoredSample], list[Problem]]:
    """The samples that decode to what was dumped, each read back from the store, and the damage of the others."""
    try:
        reader = ShardReader.from_store(store, manifest.shard)
        if identity is not None:
            identity.require_same(reader.identity, reader.where)
        if reader.samples != manifest.samples:
            raise CorruptData(f"{reader.where}: its header and its manifest name different samples")
    except (CorruptData, IdentityMismatch, FileNotFoundError) as error:
        return [], [Problem("damaged", str(error))]
    damage = {sample.id: _damage(reader, sample) for sample in samples}
    whole = [sample for sample in samples if damage[sample.id] is None]
    return whole, [problem for problem in damage.values() if problem is not None]


def _damage(reader: ShardReader, sample: StoredSample) -> Problem | None:
    """What is wrong with a sample's bytes, None when they decode to what was dumped."""
    try:
        states = reader.read(sample, check_raw=True)
        if sample_id(states.token_ids) != sample.id:
            raise CorruptData(f"{reader.where}: sample {sample.id} holds other token ids")
        if len(states.states) != sample.num_tokens:
            raise CorruptData(f"{reader.where}: sample {sample.id} has {len(states.states)} rows")
    except (CorruptData, FileNotFoundError) as error:
        return Problem("damaged", str(error))
    return None
