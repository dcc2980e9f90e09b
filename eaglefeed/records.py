"""The records that pass between machines: a sample, a batch of samples, and their packed JSON form.

Legend: ``T`` tokens of one sample.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from eaglefeed.errors import CorruptData

TokenIds = npt.NDArray[np.uint32]
LossMask = npt.NDArray[np.uint8]

PAYLOAD_VERSION = 1
MAX_BATCH_TOKENS = 64 * 1024 * 1024
"""No batch is longer than this; a payload that claims more is refused before memory is taken."""

MAX_BATCH_SAMPLES = 1 << 20
_HEX_ID = re.compile(r"[0-9a-f]{32}")


def sample_id(token_ids: npt.ArrayLike) -> str:
    """blake2b-128 of the token ids as little-endian uint32, in hex: a sample's identity.

    It is also the token digest that the engine computes from the rows it really ran (``workers/proof.py``).
    """
    ids = np.ascontiguousarray(token_ids, dtype="<u4")
    return hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()


def batch_id(sample_ids: Iterable[str]) -> str:
    """blake2b-128 over a run's name and sample ids in order, in hex: the id of a job, of its shard and manifest."""
    return hashlib.blake2b("".join(sample_ids).encode(), digest_size=16).hexdigest()


def is_id(text: object) -> bool:
    """Whether ``text`` is a sample or batch id; ids become file and key names only after this."""
    return isinstance(text, str) and _HEX_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One tokenized conversation.

    Attributes:
        token_ids: uint32 ``[T]``.
        loss_mask: uint8 ``[T]``, 1 where the token is supervised, not shifted.
    """

    token_ids: TokenIds
    loss_mask: LossMask
    id: str = ""

    def __post_init__(self) -> None:
        if self.token_ids.dtype != np.uint32 or self.token_ids.ndim != 1 or not len(self.token_ids):
            raise CorruptData(
                f"token ids are {self.token_ids.dtype}{list(self.token_ids.shape)}, not uint32 [T], T > 0"
            )
        if self.loss_mask.dtype != np.uint8 or self.loss_mask.shape != self.token_ids.shape:
            raise CorruptData(f"a loss mask of {self.loss_mask.shape} beside {len(self.token_ids)} tokens")
        object.__setattr__(self, "id", self.id or sample_id(self.token_ids))

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_supervised_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples of one job, which become one shard."""

    run: str
    samples: tuple[Sample, ...]
    id: str = ""

    def __post_init__(self) -> None:
        if not self.samples:
            raise CorruptData("a batch without samples")
        # With the run's name: two runs over the same conversations share a Redis, and a batch's id is its job's.
        object.__setattr__(self, "id", self.id or batch_id([self.run, *(sample.id for sample in self.samples)]))

    @property
    def num_tokens(self) -> int:
        return sum(sample.num_tokens for sample in self.samples)

    def to_payload(self) -> dict[str, Any]:
        """The batch as a small JSON object: ids byte-split, masks bit-packed, both zstd and base64.

        RQ compresses a payload again with zlib and JSON lists of numbers are six times slower to enqueue
        (docs/structure.md, step 5), so what is handed over is packed already.
        """
        ids = np.concatenate([sample.token_ids for sample in self.samples]).astype("<u4")
        masks = np.concatenate([sample.loss_mask for sample in self.samples])
        return {
            "version": PAYLOAD_VERSION,
            "run": self.run,
            "batch_id": self.id,
            "lengths": [sample.num_tokens for sample in self.samples],
            "tokens": _pack(np.ascontiguousarray(ids.view(np.uint8).reshape(-1, 4).T).tobytes()),
            "masks": _pack(np.packbits(masks).tobytes()),
        }

    @classmethod
    def from_payload(cls, payload: dict[str, Any]) -> Batch:
        """Unpack and verify: the batch id must be the hash of the samples that are really in it.

        Raises:
            CorruptData: a field is missing, of the wrong type, too large, or does not match the id.
        """
        if not isinstance(payload, dict):
            raise CorruptData(f"a job payload of type {type(payload).__name__}")
        if payload.get("version") != PAYLOAD_VERSION:
            raise CorruptData(f"job payload version {payload.get('version')!r}; this eaglefeed reads {PAYLOAD_VERSION}")
        run, claimed = payload.get("run"), payload.get("batch_id")
        if not isinstance(run, str) or not is_id(claimed):
            raise CorruptData(f"a job payload with run {run!r} and batch id {claimed!r}")
        lengths = _checked_lengths(payload.get("lengths"))
        total = sum(lengths)
        planes = _unpack(payload.get("tokens"), 4 * total)
        ids = np.frombuffer(planes, np.uint8).reshape(4, total).T
        token_ids = np.ascontiguousarray(ids).view("<u4").reshape(total).astype(np.uint32, copy=False)
        bits = np.frombuffer(_unpack(payload.get("masks"), (total + 7) // 8), np.uint8)
        masks = np.unpackbits(bits, count=total)
        ends = np.cumsum(lengths)[:-1]
        samples = tuple(
            Sample(tokens, mask) for tokens, mask in zip(np.split(token_ids, ends), np.split(masks, ends), strict=True)
        )
        batch = cls(run, samples)
        if batch.id != claimed:
            raise CorruptData(f"job payload {claimed}: its samples hash to {batch.id}")
        return batch


def _checked_lengths(lengths: object) -> Sequence[int]:
    if not isinstance(lengths, list) or not 0 < len(lengths) <= MAX_BATCH_SAMPLES:
        raise CorruptData("a job payload whose lengths are not a list of counts")
    if not all(type(length) is int and length > 0 for length in lengths) or sum(lengths) > MAX_BATCH_TOKENS:
        raise CorruptData(f"a job payload whose lengths are not counts below {MAX_BATCH_TOKENS} tokens in all")
    return lengths


def _pack(raw: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor(level=1).compress(raw)).decode("ascii")


def _unpack(text: object, num_bytes: int) -> bytes:
    if not isinstance(text, str) or len(text) > 2 * num_bytes + 1024:
        raise CorruptData("a job payload with a packed field that is missing or too long")
    try:
        raw = base64.b64decode(text, validate=True)
        # A frame that declares another size is refused before it is unpacked.
        if zstandard.frame_content_size(raw) != num_bytes:
            raise CorruptData(f"a packed field that is not {num_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(raw, max_output_size=num_bytes)
    except (ValueError, zstandard.ZstdError) as error:
        raise CorruptData(f"a packed field that cannot be unpacked: {error}") from error
