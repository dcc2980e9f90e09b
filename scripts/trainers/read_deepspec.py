"""DeepSpec's cache read by its description alone: there is no package of it."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from comparison import Comparison, arguments


def main() -> None:
    run, folder, _ = arguments("post_norm")
    index = (folder / "samples.idx").read_bytes()
    if len(index) != 56 * len(run):
        sys.exit(f"an index of {len(index)} bytes for {len(run)} samples")
    compared = Comparison()
    for number in range(len(run)):
        identifier, shard, T, *offsets = struct.unpack_from("<QIIQQQQQ", index, 56 * number)
        data, ours = (folder / f"shard-{shard:05d}.bin").read_bytes(), run[number]
        if identifier != number:
            sys.exit(f"record {number} is of sample {identifier}")
        ids = np.frombuffer(data, "<i4", T, offsets[0]).astype(np.int64)
        compared.equal("input_ids", ours["token_ids"], torch.from_numpy(ids))
        mask = np.frombuffer(data, "u1", T, offsets[2]).astype(np.int64)
        compared.equal("loss_mask", ours["loss_mask"], torch.from_numpy(mask))
        for name, offset in (("aux", offsets[3]), ("final", offsets[4])):
            width = ours[name].shape[1]
            bits = np.frombuffer(data, "<i2", T * width, offset).reshape(T, width).copy()
            compared.equal(name, ours[name], torch.from_numpy(bits).view(torch.bfloat16))
    compared.report(f"samples.idx and {len(list(Path(folder).glob('*.bin')))} shards, {len(run)} samples")


if __name__ == "__main__":
    main()
