"""A shard: the samples of one batch in one safetensors file, each whole in one range of bytes.

A sample's bytes are its token ids (uint32 ``[T]``), its loss mask (uint8 ``[T]``) and its encoded states, in this
order, so one range GET and its manifest entry are enough to read it. docs/format.md has every byte.
Legend: ``T`` tokens, ``S`` slots (K captured layers, one or two final states), ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed import codec
from eaglefeed.checksum import checksum
from eaglefeed.errors import CorruptData
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import StoredSample
from eaglefeed.records import LossMask, TokenIds, sample_id
from eaglefeed.shard_header import PREFIX_BYTES, header_length, unpack_header
from eaglefeed.stores.interface import Store
from eaglefeed.tensor_header import unpack_header as unpack_tensor_header


@dataclass(frozen=True, slots=True, eq=False)
class SampleStates:
    """One sample read back.

    Attributes:
        token_ids: uint32 ``[T]``.
        loss_mask: uint8 ``[T]``, 1 where the token is supervised, not shifted.
        states: bit patterns ``[T, S, H]``, uint16 (uint32 for float32); slot K is the final state before the norm,
            and slot K+1, where the run stores it, the one after.
    """

    token_ids: TokenIds
    loss_mask: LossMask
    states: npt.NDArray[Any]


def read_sample(
    blob: bytes | memoryview,
    sample: StoredSample,
    identity: RunIdentity,
    out: npt.NDArray[Any] | None = None,
    threads: int = 1,
    check_raw: bool = False,
) -> SampleStates:
    """Decode the bytes ``sample.start .. sample.end`` of its shard; every bit of them is checked.

    Args:
        out: where the states go (C-contiguous ``[T, S, H]``, for example of pinned memory); else a new array.
        check_raw: compare the decoded states with the dump's checksum too (a lossy encoding has none to compare).

    Raises:
        CorruptData: naming the sample and the tensor.
    """
    blob = memoryview(blob)
    if checksum(blob) != sample.stored_checksum:
        raise _damage(blob, sample)
    T = sample.num_tokens
    try:
        header = unpack_tensor_header(blob[5 * T :])
        shape = (T, identity.num_slots, identity.hidden_size)
        if header.plan.shape != shape or header.plan.dtype != identity.dtype:
            raise CorruptData(f"{header.plan.dtype}{header.plan.shape}, and the run says {identity.dtype}{shape}")
        states = codec.decode(blob[5 * T :], out, threads, is_checked=True)
    except CorruptData as error:
        raise CorruptData(f"sample {sample.id}, tensor states: {error}") from error
    if check_raw and header.plan.encoding != "fp8_per_token" and checksum(states.data) != sample.raw_checksum:
        raise CorruptData(f"sample {sample.id}, tensor states: decoded, they are not the bytes of the dump")
    token_ids = np.frombuffer(blob[: 4 * T], "<u4").astype(np.uint32)
    return SampleStates(token_ids, np.frombuffer(blob[4 * T : 5 * T], np.uint8).copy(), states)


class ShardReader:
    """A shard opened for reading: its header is checked, its samples are read one range at a time."""

    def __init__(self, read_range: Callable[[int, int], bytes], num_bytes: int, where: str) -> None:
        """``read_range(start, end)`` gives the bytes of the shard; ``num_bytes`` is its size.

        Raises CorruptData when the header is damaged, newer, or promises another size.
        """
        self.where, self.num_bytes, self._read_range = where, num_bytes, read_range
        prefix = read_range(0, min(PREFIX_BYTES, num_bytes))
        self.header_bytes = header_length(prefix, num_bytes, where)
        self.header = unpack_header(read_range(0, self.header_bytes), where)
        self._check_places()

    @classmethod
    def open(cls, path: Path) -> ShardReader:
        """Open a shard file."""

        def read_range(start: int, end: int) -> bytes:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(end - start)

        return cls(read_range, path.stat().st_size, str(path))

    @classmethod
    def from_store(cls, store: Store, key: str) -> ShardReader:
        """Open a shard of a store; raises FileNotFoundError when it is not there."""
        found = store.head(key)
        if found is None:
            raise FileNotFoundError(f"{store.url}/{key}")
        return cls(lambda start, end: store.get_range(key, start, end), found.num_bytes, f"{store.url}/{key}")

    @property
    def identity(self) -> RunIdentity:
        return self.header.identity

    @property
    def samples(self) -> tuple[StoredSample, ...]:
        return tuple(sample.stored for sample in self.header.samples)

    def read(self, sample: StoredSample, check_raw: bool = False, threads: int = 1) -> SampleStates:
        """One sample; raises CorruptData naming the shard, the sample and the tensor."""
        blob = self._read_range(sample.start, sample.end)
        if len(blob) != sample.end - sample.start:
            raise CorruptData(f"{self.where}: cut within sample {sample.id}")
        try:
            return read_sample(blob, sample, self.identity, threads=threads, check_raw=check_raw)
        except CorruptData as error:
            raise CorruptData(f"{self.where}: {error}") from error

    def __iter__(self) -> Iterator[tuple[StoredSample, SampleStates]]:
        for sample in self.samples:
            yield sample, self.read(sample)

    def _check_places(self) -> None:
        position = self.header_bytes
        for sample in self.samples:
            if sample.start != position or sample.end < sample.start + 5 * sample.num_tokens:
                raise CorruptData(f"{self.where}: sample {sample.id} is said to lie at {sample.start}, not {position}")
            position = sample.end
        if position != self.num_bytes:
            raise CorruptData(f"{self.where}: {self.num_bytes} bytes, and its header promises {position}")


def _damage(blob: memoryview, sample: StoredSample) -> CorruptData:
    """Which tensor of a sample is not what was written."""
    T = sample.num_tokens
    if len(blob) != sample.end - sample.start:
        return CorruptData(f"sample {sample.id}: {len(blob)} bytes of {sample.end - sample.start}: it is cut")
    if sample_id(np.frombuffer(blob[: 4 * T], "<u4")) != sample.id:
        return CorruptData(f"sample {sample.id}, tensor tokens: not the bytes that were written")
    try:
        codec.decode(blob[5 * T :])
    except CorruptData as error:
        return CorruptData(f"sample {sample.id}, tensor states: {error}")
    return CorruptData(f"sample {sample.id}, tensor mask: not the bytes that were written")
