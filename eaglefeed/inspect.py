"""Show what a shard or a run holds: the model and its layers, samples, sizes, and one sample's states on request."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from eaglefeed.errors import UsageError
from eaglefeed.fp8 import to_float32
from eaglefeed.identity import RunIdentity
from eaglefeed.ledger import locate, read_identity, read_index
from eaglefeed.progress import byte_size
from eaglefeed.records import is_id
from eaglefeed.shard import SampleStates, ShardReader
from eaglefeed.shard_header import FORMAT_VERSION, ShardSample
from eaglefeed.stores import open_store

EXAMPLE = """examples:
  eaglefeed inspect store/demo/shards/0f….safetensors
  eaglefeed inspect s3://bucket/runs --run demo
  eaglefeed inspect store/demo/shards/0f….safetensors --sample 3e28"""
SHOWN_SAMPLES = 20
_FINAL_NAMES = {"pre_norm": "final, before the norm", "post_norm": "final, after the norm"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="SHARD|RUN", help="a shard file, or a run's folder or store (path or s3://…)")
    parser.add_argument("--run", metavar="NAME", help="which run, where a store holds several")
    parser.add_argument("--sample", metavar="ID", help="decode this sample of the shard (its id's beginning is enough)")
    parser.add_argument("--all", action="store_true", help=f"list all samples, not the first {SHOWN_SAMPLES}")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def main(parsed: argparse.Namespace) -> int:
    record = _shard(parsed) if parsed.what.endswith(".safetensors") else _run(parsed)
    print(json.dumps(record) if parsed.json else _page(record))
    return 0


def _shard(parsed: argparse.Namespace) -> dict[str, Any]:
    reader = _open_shard(parsed.what)
    if parsed.sample:
        return _sample(reader, parsed.sample)
    samples = reader.header.samples
    raw_bytes = sum(sample.stored.num_tokens for sample in samples) * reader.identity.bytes_per_token
    shown = samples if parsed.all or parsed.json else samples[:SHOWN_SAMPLES]
    return {
        "shard": reader.where,
        "format_version": FORMAT_VERSION,
        "batch": reader.header.batch_id,
        "encoding": reader.header.encoding,
        **_identity(reader.identity),
        "samples": len(samples),
        "tokens": sum(sample.stored.num_tokens for sample in samples),
        "supervised_tokens": sum(sample.stored.num_supervised_tokens for sample in samples),
        **_sizes(raw_bytes, reader.num_bytes),
        "listed": [_listed(sample) for sample in shown],
    }


def _run(parsed: argparse.Namespace) -> dict[str, Any]:
    url, run = locate(parsed.what, parsed.run)
    store = open_store(url)
    identity = read_identity(store, run)
    index, gaps = read_index(store, run)
    num_tokens = int(index.num_tokens.sum())
    lengths = np.percentile(index.num_tokens, (0, 50, 95, 100)).astype(int).tolist() if len(index) else []
    return {
        "store": store.url,
        **_identity(identity),
        "manifests": index.num_manifests,
        "shards": len(index.batch_ids),
        "samples": len(index),
        "rejected": index.num_rejected,
        "tokens": num_tokens,
        "supervised_tokens": int(index.num_supervised_tokens.sum()),
        "tokens_a_sample": dict(zip(("min", "median", "p95", "max"), lengths, strict=False)),
        **_sizes(num_tokens * identity.bytes_per_token, int(index.shard_bytes.sum())),
        "gaps": gaps.sentence(),
    }


def _open_shard(what: str) -> ShardReader:
    if what.startswith("s3://"):
        url, _, key = what.rpartition("/")
        url, _, folder = url.rpartition("/")
        return ShardReader.from_store(open_store(url), f"{folder}/{key}")
    path = Path(what)
    if not path.is_file():
        raise UsageError(f"{what}: no such file")
    return ShardReader.open(path)


def _sample(reader: ShardReader, beginning: str) -> dict[str, Any]:
    found = [sample for sample in reader.header.samples if sample.stored.id.startswith(beginning)]
    if len(found) != 1:
        kind = "is no sample id" if not is_id(beginning) and not found else f"begins {len(found)} sample ids"
        raise UsageError(f"{reader.where}: {beginning!r} {kind} of this shard; without --sample they are listed")
    sample = found[0]
    states = reader.read(sample.stored, check_raw=True)
    return {
        "shard": reader.where,
        **_listed(sample),
        "first_tokens": states.token_ids[:8].tolist(),
        "raw_checksum": sample.stored.raw_checksum,
        "stored_checksum": sample.stored.stored_checksum,
        "slots": _slots(reader.identity, states),
    }


def _slots(identity: RunIdentity, states: SampleStates) -> list[dict[str, Any]]:
    """Root mean square and range of each slot: enough to see zeros, a missing norm or a foreign layer."""
    names = [f"output of layer {layer}" if layer >= 0 else "embedding" for layer in identity.layer_ids]
    names += [_FINAL_NAMES.get(kind, f"final, {kind}") for kind in identity.final_states]
    rows = []
    for slot, name in enumerate(names):
        values = to_float32(np.ascontiguousarray(states.states[:, slot]), identity.dtype).astype(np.float64)
        rms = round(float(np.sqrt(np.mean(values**2))), 4)
        rows.append({"slot": name, "rms": rms, "min": float(values.min()), "max": float(values.max())})
    return rows


def _identity(identity: RunIdentity) -> dict[str, Any]:
    return {
        "run": identity.run,
        "model": identity.model,
        "layers": list(identity.layer_ids),
        "layer_convention": identity.layer_convention,
        "final_state": identity.final_state,
        "hidden_size": identity.hidden_size,
        "dtype": identity.dtype,
        "engine": identity.engine,
    }


def _sizes(raw_bytes: int, stored_bytes: int) -> dict[str, Any]:
    ratio = round(raw_bytes / stored_bytes, 4) if stored_bytes else 0.0
    return {"raw_bytes": raw_bytes, "stored_bytes": stored_bytes, "ratio": ratio}


def _listed(sample: ShardSample) -> dict[str, Any]:
    stored = sample.stored
    return {
        "id": stored.id,
        "tokens": stored.num_tokens,
        "supervised": stored.num_supervised_tokens,
        "shape": list(sample.shape),
        "encoding": sample.encoding,
        "bytes": f"{stored.start}-{stored.end}",
    }


def _page(record: dict[str, Any]) -> str:
    """Names and values in two columns; lists of records as a table below."""
    lines, tables = [], []
    for name, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            tables.append(_table(value))
        elif value not in ("", {}, []):
            lines.append(f"{name.replace('_', ' '):<18} {_text(name, value)}")
    if "listed" in record and record["samples"] > len(record["listed"]):
        tables.append(f"… {record['samples'] - len(record['listed']):,} more; --all lists them")
    return "\n".join(lines + tables)


def _text(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{byte_size(value)}  ({value:,})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {number:,}" for key, number in value.items())
    return f"{value:,}" if type(value) is int else str(value)


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    texts = [names] + [[str(row[name]) for name in names] for row in rows]
    widths = [max(len(text[column]) for text in texts) for column in range(len(names))]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in texts)
