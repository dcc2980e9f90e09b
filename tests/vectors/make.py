"""Write the test vectors again: `python tests/vectors/make.py`. They change only when the format's version does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from eaglefeed import codec
from eaglefeed.checksum import checksum
from eaglefeed.records import Batch, Sample
from eaglefeed.shard_writer import write_shard
from tests.runs import make_dump, make_identity

FOLDER = Path(__file__).parent


def tensors() -> dict[str, tuple[np.ndarray, str, str]]:
    """Name: bit patterns ``[T, S, H]``, dtype, encoding."""
    rng = np.random.default_rng(2026)
    values = rng.standard_normal((300, 3, 8)).astype(np.float32) * np.exp(rng.normal(0, 1, (3, 8))).astype(np.float32)
    bfloat16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    bfloat16[7, 1, :6] = [0x7F80, 0xFF80, 0x7FC1, 0x8000, 0x0001, 0x7F81]
    float16 = values[:20].astype(np.float16).view(np.uint16)
    finite = (values[:20].view(np.uint32) >> 16).astype(np.uint16)
    return {
        "lossless-bfloat16": (bfloat16, "bfloat16", "lossless"),
        "lossless-few-rows": (bfloat16[:5], "bfloat16", "lossless"),
        "lossless-float16": (float16, "float16", "lossless"),
        "lossless-float32": (values[:20].view(np.uint32), "float32", "lossless"),
        "raw-bfloat16": (bfloat16[:5], "bfloat16", "raw"),
        "fp8-bfloat16": (finite, "bfloat16", "fp8_per_token"),
    }


def main() -> None:
    listed = {}
    for name, (array, dtype, encoding) in tensors().items():
        blob = codec.encode(np.ascontiguousarray(array), dtype, encoding)
        (FOLDER / f"{name}.efc").write_bytes(blob)
        decoded = codec.decode(blob)
        (FOLDER / f"{name}.raw").write_bytes(decoded.tobytes())
        listed[name] = {"dtype": dtype, "encoding": encoding, "shape": list(array.shape), "raw": checksum(decoded.data)}
    (FOLDER / "tensors.json").write_text(json.dumps(listed, indent=1) + "\n")
    _write_shard()


def _write_shard() -> None:
    identity = make_identity("vectors", hidden_size=8)
    samples = [
        Sample(np.arange(5, 5 + length, dtype=np.uint32), (np.arange(length) % 3 > 0).astype(np.uint8))
        for length in (3, 40)
    ]
    batch = Batch("vectors", tuple(samples))
    dumps = {sample.id: make_dump(identity, batch.id, sample) for sample in samples}
    write_shard(FOLDER / "shard.safetensors", identity, batch, dumps)
    for sample in samples:
        (FOLDER / f"shard-{sample.id}.raw").write_bytes(dumps[sample.id].states.tobytes())


if __name__ == "__main__":
    main()
