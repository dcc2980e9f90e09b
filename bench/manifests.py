"""A run of many batches as files: real manifests, shards of the right length that hold nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import Manifest, StoredSample, manifest_key, run_key, shard_key
from eaglefeed.progress import Progress

IDENTITY = RunIdentity(
    run="bench",
    model="none",
    model_config_sha256="0" * 64,
    tokenizer_sha256="0" * 64,
    chat_template_sha256="0" * 64,
    num_layers=32,
    hidden_size=4096,
    vocab_size=128_256,
    layer_ids=(1, 15, 28),
    dtype="bfloat16",
    max_length=4096,
    data_preparation="none",
    engine="none",
    plugin="0",
)
_TOKENS = 1000
_SAMPLE_BYTES = _TOKENS * 21_900


def write_run(folder: Path, num_manifests: int, samples_a_manifest: int, quiet: bool) -> None:
    """Write ``run.json``, manifests and sparse shards below ``folder``."""
    for kind in ("manifests", "shards"):
        (folder / IDENTITY.run / kind).mkdir(parents=True)
    (folder / run_key(IDENTITY.run)).write_bytes(IDENTITY.to_json())
    with Progress("making manifests", num_manifests, "manifests", quiet) as progress:
        for number in range(num_manifests):
            manifest = _manifest(number, samples_a_manifest)
            (folder / manifest_key(IDENTITY.run, manifest.batch_id)).write_bytes(manifest.to_json())
            with (folder / manifest.shard).open("wb") as shard:
                shard.truncate(manifest.shard_bytes)
            progress.update(number + 1)


def _manifest(number: int, num_samples: int) -> Manifest:
    batch = _id(f"batch {number}")
    samples = tuple(_sample(number, place) for place in range(num_samples))
    return Manifest(
        run=IDENTITY.run,
        batch_id=batch,
        shard=shard_key(IDENTITY.run, batch),
        shard_bytes=4096 + num_samples * _SAMPLE_BYTES,
        shard_checksum=f"crc32:{number:08x}",
        raw_bytes=num_samples * _TOKENS * IDENTITY.bytes_per_token,
        samples=samples,
        node="bench",
        engine={"name": "none", "version": "0"},
        created_at=1.8e9 + number,
    )


def _sample(batch: int, place: int) -> StoredSample:
    start = 4096 + place * _SAMPLE_BYTES
    checksum = f"crc32:{batch * 1000 + place:08x}"
    return StoredSample(
        _id(f"{batch} {place}"), _TOKENS, 400, _TOKENS, start, start + _SAMPLE_BYTES, checksum, checksum
    )


def _id(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
