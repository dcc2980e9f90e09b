"""A dump: the complete states of one sample on the node that made them, in one file of the spool.

Layout (little-endian)::

    8   magic  b"EFDUMP\\0\\1"  (the last byte is the version)
    4   u32    length of the JSON header
    4   u32    CRC-32 of the JSON header
    .   JSON   sample_id, token_digest, num_tokens, num_slots, hidden_size, dtype, layer_ids, rows_crc32, ...
    .   zeros  up to a multiple of 4096
    .   u32    token ids   [T]   the forward's own input ids, row by row
    .   u32    positions   [T]   the forward's own positions, row by row
    .   rows   states      [T, S, H]     captured layers in ascending order, then the final state before the norm and,
                                         where the run's identity says so, the one after it

Legend: ``T`` tokens, ``S`` slots (K captured layers, one or two final states), ``H`` hidden width.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.errors import CorruptData

MAGIC = b"EFDUMP\0\1"
ALIGNMENT = 4096
MAX_HEADER_BYTES = 1 << 20
SUFFIX = ".dump"
PART_SUFFIX = ".part"
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class DumpHeader:
    """What a dump says of itself.

    Attributes:
        run, batch_id: which job it belongs to, so that a leftover of a dead process can be placed.
        token_digest: ``records.sample_id`` of the token ids the forward really ran.
        layer_ids: ``output_of_layer`` numbering, ascending.
        rows_crc32: CRC-32 of the states' bytes.
    """

    run: str
    batch_id: str
    sample_id: str
    token_digest: str
    num_tokens: int
    num_slots: int
    hidden_size: int
    dtype: str
    layer_ids: tuple[int, ...]
    rows_crc32: int
    engine: str = ""

    @property
    def row_bytes(self) -> int:
        return self.num_slots * self.hidden_size * ELEMENT_BYTES[self.dtype]

    @property
    def states_bytes(self) -> int:
        return self.num_tokens * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """A dump read back. ``states`` is a memory map ``[T, S, H]`` of uint16 (uint32 for float32) bit patterns."""

    header: DumpHeader
    token_ids: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]
    states: npt.NDArray[Any]


class DumpWriter:
    """Writes a dump in pieces, rows in order, under a temporary name: a dump that can be seen is whole.

    A prompt of any length needs only one piece in memory at a time. Used by one thread at a time.

    Args:
        header: with the ``num_tokens`` there will be; its digest and checksum are filled in by ``finish``.

    Raises:
        OSError: the disk is full or failing (from any method); ``discard`` then leaves nothing behind.
    """

    def __init__(self, path: Path, header: DumpHeader) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + PART_SUFFIX)
        self._header = header
        self._digest = hashlib.blake2b(digest_size=16)
        self._crc = 0
        self._start = len(_encode_header(header))
        self.num_rows = 0
        self._descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def append(
        self,
        token_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.uint32],
        states: npt.NDArray[Any],
    ) -> None:
        """Write the next rows: uint32 ``[n]``, uint32 ``[n]``, bit patterns ``[n, S, H]``."""
        T, done = self._header.num_tokens, self.num_rows
        self._digest.update(np.ascontiguousarray(token_ids, "<u4").tobytes())
        self._crc = zlib.crc32(states.data, self._crc)
        _write_all(self._descriptor, token_ids, self._start + 4 * done)
        _write_all(self._descriptor, positions, self._start + 4 * (T + done))
        _write_all(self._descriptor, states, self._start + 8 * T + done * self._header.row_bytes)
        self.num_rows += len(token_ids)

    def finish(self) -> DumpHeader:
        """Write the header, sync, rename; returns the header as written."""
        header = replace(self._header, token_digest=self._digest.hexdigest(), rows_crc32=self._crc)
        _write_all(self._descriptor, _encode_header(header), 0)
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._temporary.rename(self._path)
        return header

    def discard(self) -> None:
        """Leave nothing behind; harmless after ``finish``."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._temporary.unlink(missing_ok=True)


def write_dump(
    path: Path,
    header: DumpHeader,
    token_ids: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.uint32],
    states: npt.NDArray[Any],
) -> None:
    """Write a whole dump with the header as given.

    Raises:
        OSError: the disk is full or failing; nothing is left behind.
    """
    temporary = path.with_name(path.name + PART_SUFFIX)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0):
            offset = 0
            for part in (_encode_header(header), token_ids, positions, states):
                offset = _write_all(descriptor, part, offset)
            os.fsync(descriptor)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_header(path: Path) -> DumpHeader:
    """Raises CorruptData when the file is not a whole dump of this version."""
    with path.open("rb") as file:
        return _decode_header(path, file.read(16), file, path.stat().st_size)[0]


def read_dump(path: Path) -> Dump:
    """Map a dump. The states' checksum is left to ``check_rows`` (it reads every byte)."""
    with path.open("rb") as file:
        header, start = _decode_header(path, file.read(16), file, path.stat().st_size)
    T = header.num_tokens
    token_ids = np.fromfile(path, "<u4", T, offset=start).astype(np.uint32, copy=False)
    positions = np.fromfile(path, "<u4", T, offset=start + 4 * T).astype(np.uint32, copy=False)
    bits = "<u4" if header.dtype == "float32" else "<u2"
    shape = (T, header.num_slots, header.hidden_size)
    states = np.memmap(path, bits, "r", start + 8 * T, shape)
    return Dump(header, token_ids, positions, states)


def check_rows(dump: Dump) -> bool:
    """Whether the states are the bytes that the engine wrote."""
    return zlib.crc32(dump.states.data) == dump.header.rows_crc32


def forget_pages(dump: Dump) -> None:
    """Let the kernel take back the memory of a mapped dump's rows; they are read from the disk when touched again."""
    mapped = getattr(dump.states, "_mmap", None)  # None for rows that are no map
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _write_all(descriptor: int, part: Any, offset: int) -> int:
    """Write at an offset, however many calls it takes; returns the offset behind it."""
    view = memoryview(part).cast("B")
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
    return offset


def _encode_header(header: DumpHeader) -> bytes:
    """Padded so that the rows begin at the same offset whatever the digest and the checksum turn out to be."""
    longest = replace(header, token_digest="0" * 32, rows_crc32=0xFFFFFFFF)
    text = json.dumps(asdict(header)).encode().ljust(len(json.dumps(asdict(longest))))
    head = MAGIC + struct.pack("<II", len(text), zlib.crc32(text)) + text
    return head + bytes(-len(head) % ALIGNMENT)


def _decode_header(path: Path, prefix: bytes, file: Any, size: int) -> tuple[DumpHeader, int]:
    if len(prefix) < 16 or prefix[:7] != MAGIC[:7]:
        raise CorruptData(f"{path} is not a dump")
    if prefix[:8] != MAGIC:
        raise CorruptData(f"{path} is a dump of version {prefix[7]}; this eaglefeed reads {MAGIC[7]}")
    length, checksum = struct.unpack("<II", prefix[8:16])
    if length > MAX_HEADER_BYTES:
        raise CorruptData(f"{path}: a header of {length} bytes")
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != checksum:
        raise CorruptData(f"{path}: its header is damaged")
    header = _parse_header(path, text)
    start = -(-(16 + length) // ALIGNMENT) * ALIGNMENT
    expected = start + 8 * header.num_tokens + header.states_bytes
    if size != expected:
        raise CorruptData(f"{path}: {size} bytes, and its header promises {expected}")
    return header, start


def _parse_header(path: Path, text: bytes) -> DumpHeader:
    try:
        record: dict[str, Any] = json.loads(text)
        record["layer_ids"] = tuple(record["layer_ids"])
        header = DumpHeader(**{field.name: record[field.name] for field in fields(DumpHeader)})
        counts = (header.num_tokens, header.num_slots, header.hidden_size)
        if not all(type(count) is int and count > 0 for count in counts) or header.dtype not in ELEMENT_BYTES:
            raise CorruptData(f"{path}: a dump of shape {counts}, {header.dtype}")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptData(f"{path}: its header lacks or misstates a field: {error}") from error
    return header
