"""Real runs made of random states: run.json, shards, manifests and the final norm, as the storage worker leaves them.

A row's states depend on its token, as a model's do: a low layer is close to the token's own vector.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy

from eaglefeed.bits import bits_of_float32, float32_of_bits
from eaglefeed.dump import Dump, DumpHeader
from eaglefeed.identity import PRE_AND_POST_NORM, RunIdentity
from eaglefeed.manifest import Manifest, manifest_key, norm_key, run_key, shard_key
from eaglefeed.norm import parse_norm
from eaglefeed.records import Batch, Sample
from eaglefeed.shard_writer import write_shard
from eaglefeed.stores import Store, open_store

VOCABULARY = 512


def make_identity(
    run: str = "synthetic",
    hidden_size: int = 64,
    layer_ids: tuple[int, ...] = (1, 5, 8),
    final_state: str = "pre_norm",
) -> RunIdentity:
    return RunIdentity(
        run=run,
        model="tiny",
        model_config_sha256="c" * 64,
        tokenizer_sha256="d" * 64,
        chat_template_sha256="e" * 64,
        num_layers=12,
        hidden_size=hidden_size,
        vocab_size=VOCABULARY,
        layer_ids=layer_ids,
        dtype="bfloat16",
        max_length=4096,
        data_preparation="none",
        engine="synthetic 0",
        plugin="1",
        final_state=final_state,
    )


def make_sample(number: int, num_tokens: int) -> Sample:
    """Tokens in Zipf's proportions, so that samples share many; the second half is supervised."""
    rng = np.random.default_rng([7, number])
    token_ids = np.minimum(rng.zipf(1.3, num_tokens), VOCABULARY - 1).astype(np.uint32)
    token_ids[: min(4, num_tokens)] = [(number >> (6 * place)) & 63 for place in range(min(4, num_tokens))]
    mask = (np.arange(num_tokens) >= num_tokens // 2).astype(np.uint8)
    return Sample(token_ids, mask)


def make_states(identity: RunIdentity, sample: Sample) -> np.ndarray:
    """float32 ``[T, K+1, H]``: token vectors, less and less of them in higher layers; the final state is large.

    That state is the one before the norm; ``make_dump`` adds the one after it where the run stores it.
    """
    T, S, H = sample.num_tokens, len(identity.layer_ids) + 1, identity.hidden_size
    rng = np.random.default_rng(int(sample.id[:8], 16))
    vectors = np.random.default_rng(3).standard_normal((identity.vocab_size, H)).astype(np.float32)
    noise = rng.standard_normal((T, S, H)).astype(np.float32)
    share = np.linspace(0.8, 0.3, S, dtype=np.float32)[None, :, None]
    states = share * vectors[sample.token_ids][:, None] + (1 - share) * noise
    states[:, -1] *= 20
    return states


def make_dump(identity: RunIdentity, batch_id: str, sample: Sample) -> Dump:
    states = bits_of_float32(make_states(identity, sample), identity.dtype)
    if identity.final_state == PRE_AND_POST_NORM:
        normed = parse_norm(norm_bytes(identity.hidden_size), "the test's").apply(
            float32_of_bits(states[:, -1:], identity.dtype)
        )
        states = np.concatenate([states, bits_of_float32(normed, identity.dtype)], axis=1)
    header = DumpHeader(
        run=identity.run,
        batch_id=batch_id,
        sample_id=sample.id,
        token_digest=sample.id,
        num_tokens=sample.num_tokens,
        num_slots=identity.num_slots,
        hidden_size=identity.hidden_size,
        dtype=identity.dtype,
        layer_ids=identity.layer_ids,
        rows_crc32=zlib.crc32(states.data),
        engine=identity.engine,
    )
    positions = np.arange(sample.num_tokens, dtype=np.uint32)
    return Dump(header, sample.token_ids, positions, states)


def write_batch(store: Store, identity: RunIdentity, samples: Sequence[Sample], folder: Path) -> Manifest:
    """One batch to the store, as the storage worker does: the shard, then its manifest."""
    batch = Batch(identity.run, tuple(samples))
    path = folder / f"{batch.id}.shard"
    written = write_shard(path, identity, batch, {each.id: make_dump(identity, batch.id, each) for each in samples})
    key = shard_key(identity.run, batch.id)
    store.put_file(key, path, written.shard_checksum)
    manifest = Manifest(
        identity.run,
        batch.id,
        key,
        written.shard_bytes,
        written.shard_checksum,
        written.raw_bytes,
        written.samples,
    )
    store.create(manifest_key(identity.run, batch.id), manifest.to_json())
    path.unlink()
    return manifest


def make_run(
    url: str, folder: Path, lengths: Sequence[int], samples_per_shard: int = 4, identity: RunIdentity | None = None
) -> RunIdentity:
    """A whole run of ``len(lengths)`` samples at ``url``; ``folder`` is for temporary files."""
    identity = identity or make_identity()
    store = open_store(url)
    store.create(run_key(identity.run), identity.to_json())
    store.create(norm_key(identity.run), norm_bytes(identity.hidden_size))
    samples = [make_sample(number, length) for number, length in enumerate(lengths)]
    for start in range(0, len(samples), samples_per_shard):
        write_batch(store, identity, samples[start : start + samples_per_shard], folder)
    return identity


def norm_bytes(hidden_size: int, kind: str = "rms", eps: float = 1e-5) -> bytes:
    """A norm file as the engine's plugin writes it (the weight in float32 here: numpy has no bfloat16)."""
    weight = 1 + 0.1 * np.random.default_rng(11).standard_normal(hidden_size).astype(np.float32)
    metadata = {"eps": repr(eps), "kind": kind, "lm_head_dtype": "bfloat16"}
    data: bytes = safetensors.numpy.save({"weight": weight}, metadata)
    return data
