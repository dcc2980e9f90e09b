"""Is a dump the complete states of its sample? Every check of step 7, each with a reason of its own.

Legend: ``T`` tokens, ``S`` slots (K captured layers, one or two final states), ``H`` hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eaglefeed.bits import float32_of_bits
from eaglefeed.dump import Dump, check_rows
from eaglefeed.errors import EngineGone, ProofFailed
from eaglefeed.identity import RunIdentity
from eaglefeed.norm import FinalNorm, parse_norm
from eaglefeed.records import Sample, sample_id
from workers.answered_dump import dump_path, read_answered
from workers.engine import Answer
from workers.sglang_plugin.plan import plan_capture

Bits = npt.NDArray[Any]

_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}
_SIGN_AND_REST = {"bfloat16": 0x7FFF, "float16": 0x7FFF, "float32": 0x7FFFFFFF}
_BLOCK_ELEMENTS = 1 << 20
_NORM_ROWS, _MAX_NORM_ROWS = 8, 64
_NORM_TOLERANCE = 0.004  # bfloat16 rounds each element by up to 1/256; their mean square over a row varies far less
_MIN_SCALE = 1e-3
_POST_NORM_TOLERANCE = 0.02  # of a row's own norm; bfloat16 costs 0.006, as the stored state before the norm is rounded
FINAL_NORM_FILE = "final_norm.safetensors"


def prove(answer: Answer, identity: RunIdentity, folder: Path, batch_id: str) -> Path:
    """The path of the answer's dump, once everything about it has been proved.

    Args:
        folder: the run's folder of the spool.

    Raises:
        ProofFailed: with the reason and the values; ``num_rows_of`` tells how many rows there were.
        SpoolFull: the engine could not write to the disk, full, read-only or failing: the sample is not to blame.
    """
    path = dump_path(answer, folder)
    dump = read_answered(path)
    check_request(dump, answer.sample, identity, batch_id)
    check_captured_layers(answer, identity)
    check_rows_belong(dump, answer.sample)
    check_answer(dump, answer)
    check_states(dump)
    check_pre_norm(dump, folder)
    if "post_norm" in identity.final_states:
        check_post_norm(dump, folder)
    return path


def check_request(dump: Dump, sample: Sample, identity: RunIdentity, batch_id: str) -> None:
    """The dump is of this sample, batch and run, with one row per token, in the run's layout."""
    header = dump.header
    if header.num_tokens != sample.num_tokens:
        kind = "short" if header.num_tokens < sample.num_tokens else "long"
        raise ProofFailed(f"{kind}-dump", f"{header.num_tokens} rows for {sample.num_tokens} tokens")
    if (header.run, header.batch_id, header.sample_id) != (identity.run, batch_id, sample.id):
        raise ProofFailed("other-request", f"the dump is of sample {header.sample_id}, batch {header.batch_id}")
    if header.layer_ids != identity.layer_ids:
        raise ProofFailed("layers", f"layers {list(header.layer_ids)}, the run has {list(identity.layer_ids)}")
    if header.num_slots != identity.num_slots:
        raise ProofFailed(
            "layers",
            f"{header.num_slots} states a token, the run has {identity.num_slots}: "
            f"{len(identity.layer_ids)} layers and {identity.final_state}",
        )
    if header.hidden_size != identity.hidden_size:
        raise ProofFailed("width", f"rows of width {header.hidden_size}, the model's is {identity.hidden_size}")
    if header.dtype != identity.dtype:
        raise ProofFailed("dtype", f"states in {header.dtype}, the run has {identity.dtype}")
    if header.engine != identity.engine:
        raise ProofFailed("engine", f"made by {header.engine!r}, the run is of {identity.engine!r}")


def check_answer(dump: Dump, answer: Answer) -> None:
    """Nothing came from a cache, and both sides mean the same file."""
    if answer.cached_tokens != 0:
        raise ProofFailed("cached-tokens", f"{answer.cached_tokens} of {answer.sample.num_tokens} tokens were cached")
    receipt = answer.receipt
    if receipt.get("token_digest") != answer.sample.id:
        raise ProofFailed("token-digest", f"the engine ran {receipt.get('token_digest')}, asked for {answer.sample.id}")
    if receipt.get("num_rows") != dump.header.num_tokens or receipt.get("rows_crc32") != dump.header.rows_crc32:
        raise ProofFailed("receipt", "the receipt and the dump's header disagree")


def check_captured_layers(answer: Answer, identity: RunIdentity) -> None:
    """What the model captures, as read back from it, is what the run's layers mean."""
    wanted = list(plan_capture(identity.layer_ids, identity.num_layers).inputs)
    if answer.receipt.get("captured_inputs") != wanted:
        raise ProofFailed(
            "layers",
            f"the model captures the inputs of layers {answer.receipt.get('captured_inputs')}, "
            f"outputs {list(identity.layer_ids)} are inputs {wanted}",
        )


def check_rows_belong(dump: Dump, sample: Sample) -> None:
    """Each row was computed for the token and the position it stands for; no row stands for another token too."""
    different = np.flatnonzero(dump.token_ids != sample.token_ids)
    if len(different):
        row = int(different[0])
        raise ProofFailed(
            "token-ids",
            f"row {row} is of token {dump.token_ids[row]}, the sample has {sample.token_ids[row]} "
            f"({len(different)} rows differ)",
        )
    if dump.header.token_digest != sample.id or sample_id(dump.token_ids) != sample.id:
        raise ProofFailed("token-digest", f"the dump's is {dump.header.token_digest}, the sample's {sample.id}")
    gaps = np.flatnonzero(dump.positions != np.arange(len(dump.positions), dtype=np.uint32))
    if len(gaps):
        row = int(gaps[0])
        raise ProofFailed("positions", f"row {row} is of position {dump.positions[row]}")


def check_states(dump: Dump) -> None:
    """The bytes are those the engine wrote; finite, none all zero, none repeated for another token."""
    if not check_rows(dump):
        raise ProofFailed("rows-checksum", "the states are not the bytes that the engine wrote")
    for start, block in _blocks(dump):
        _check_finite(start, block, dump.header.dtype)
        _check_not_zero(start, block, dump.header.dtype)
    _check_not_repeated(dump)


def check_pre_norm(dump: Dump, folder: Path) -> None:
    """The final state is not normalized already: divided by the norm's weight, its rows do not all have RMS 1."""
    if dump.header.num_tokens < _NORM_ROWS:
        return
    norm = _final_norm(folder / FINAL_NORM_FILE)
    used = np.abs(norm.scale) > _MIN_SCALE
    rows = _final_rows(dump, slice(_MAX_NORM_ROWS), 0)[:, used]
    mean_square = np.square(rows / norm.scale[used], dtype=np.float64).mean(axis=1)
    if np.all(np.abs(mean_square - 1) < _NORM_TOLERANCE):
        raise ProofFailed("final-norm-applied", "the final state's rows are normalized; the run stores them before")


def check_post_norm(dump: Dump, folder: Path) -> None:
    """The last slot is the norm of the one before it, looked at in rows all over the sample."""
    rows = np.unique(np.linspace(0, dump.header.num_tokens - 1, _MAX_NORM_ROWS).astype(int))
    before, after = _final_rows(dump, rows, 0), _final_rows(dump, rows, 1)
    wanted = _final_norm(folder / FINAL_NORM_FILE).apply(before)
    errors = np.linalg.norm(after - wanted, axis=1) / np.maximum(np.linalg.norm(wanted, axis=1), _MIN_SCALE)
    if errors.max() > _POST_NORM_TOLERANCE:
        row = int(rows[errors.argmax()])
        raise ProofFailed("post-norm", f"row {row} is {errors.max():.2g} away from the norm of the state before it")


@cache
def _final_norm(path: Path) -> FinalNorm:
    try:
        return parse_norm(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise EngineGone(f"{path} is not there: the engine writes it when it starts, into its own spool") from error


def _final_rows(dump: Dump, rows: Any, place: int) -> npt.NDArray[np.float32]:
    """Rows of the final state before (place 0) or after the norm (place 1), float32 ``[n, H]``."""
    return float32_of_bits(np.array(dump.states[rows, len(dump.header.layer_ids) + place]), dump.header.dtype)


def _blocks(dump: Dump) -> Iterator[tuple[int, Bits]]:
    """Runs of rows ``[n, S, H]`` small enough for a core's cache, with the first one's number."""
    rows = max(1, _BLOCK_ELEMENTS // (dump.header.num_slots * dump.header.hidden_size))
    for start in range(0, dump.header.num_tokens, rows):
        yield start, dump.states[start : start + rows]


def _check_finite(start: int, block: Bits, dtype: str) -> None:
    exponent = block.dtype.type(_EXPONENT[dtype])
    infinite = (block & exponent) == exponent
    if infinite.any():
        row, slot, column = (int(place[0]) for place in np.nonzero(infinite))
        raise ProofFailed("not-finite", f"row {start + row}, slot {slot}, column {column} is NaN or infinite")


def _check_not_zero(start: int, block: Bits, dtype: str) -> None:
    magnitude = block.dtype.type(_SIGN_AND_REST[dtype])
    zero = ~((block & magnitude).any(axis=2))
    if zero.any():
        row, slot = (int(place[0]) for place in np.nonzero(zero))
        raise ProofFailed("all-zero", f"row {start + row} is all zero in slot {slot}")


def _check_not_repeated(dump: Dump) -> None:
    """Rows of different tokens are never equal: the residual stream carries the token's own embedding.

    Equal rows of equal tokens do occur: a prompt that repeats one token from its start.
    """
    for slot in range(len(dump.header.layer_ids), dump.header.num_slots):
        _check_slot_not_repeated(dump, np.ascontiguousarray(dump.states[:, slot]))


def _check_slot_not_repeated(dump: Dump, final: Bits) -> None:
    digests = final.view(np.uint8).reshape(len(final), -1).view(np.dtype((np.void, final.itemsize * final.shape[1])))
    order = np.argsort(digests.ravel(), kind="stable")
    ordered = digests.ravel()[order]
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    for place in equal:
        first, second = sorted((int(order[place]), int(order[place + 1])))
        if dump.token_ids[first] != dump.token_ids[second]:
            raise ProofFailed("repeated-row", f"rows {first} and {second} are equal, and their tokens are not")
