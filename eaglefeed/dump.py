"""A dump: the complete states of one sample on the node that made them, in one file of the spool.

Layout (little-endian)::

    8   magic  b"EFDUMP\\0\\1"  (the last byte is the version)
    4   u32    length of the JSON header
    4   u32    CRC-32 of the JSON header
    .   JSON   sample_id, token_digest, num_tokens, num_slots, hidden_size, dtype, layer_ids, rows_crc32, ...
    .   zeros  up to a multiple of 4096
    .   u32    token ids   [T]   the forward's own input ids, row by row
    .   u32    positions   [T]   the forward's own positions, row by row
    .   rows   states      [T, K+1, H]   captured layers in ascending order, then the final state before the norm

Legend: ``T`` tokens, ``K`` captured layers, ``H`` hidden width.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.errors import CorruptData

MAGIC = b"EFDUMP\0\1"
ALIGNMENT = 4096
MAX_HEADER_BYTES = 1 << 20
SUFFIX = ".dump"
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
    """A dump read back. ``states`` is a memory map ``[T, K+1, H]`` of uint16 (uint32 for float32) bit patterns."""

    header: DumpHeader
    token_ids: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]
    states: npt.NDArray[Any]


def write_dump(
    path: Path,
    header: DumpHeader,
    token_ids: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.uint32],
    states: npt.NDArray[Any],
) -> None:
    """Write under a temporary name, sync, rename: a dump that can be seen is whole.

    Raises:
        OSError: the disk is full or failing; nothing is left behind.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for part in (_encode_header(header), token_ids, positions, states):
                _write_all(file.fileno(), part)
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


def _write_all(descriptor: int, part: Any) -> None:
    view = memoryview(part).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _encode_header(header: DumpHeader) -> bytes:
    text = json.dumps(asdict(header)).encode()
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
