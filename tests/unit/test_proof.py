"""The workers' proof: a whole dump passes, and each fault is refused under its own name."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglefeed.bits import bits_of_float32, float32_of_bits
from eaglefeed.dump import Dump, write_dump
from eaglefeed.errors import ProofFailed, SpoolFull
from eaglefeed.identity import PRE_AND_POST_NORM, RunIdentity
from eaglefeed.norm import parse_norm
from eaglefeed.records import Sample, batch_id
from tests.runs import make_dump, make_identity, make_sample, norm_bytes
from workers.engine import Answer
from workers.proof import FINAL_NORM_FILE, prove

IDENTITY = make_identity()
WITH_POST_NORM = make_identity(final_state=PRE_AND_POST_NORM)
SAMPLE = make_sample(3, 40)
OTHER = make_sample(4, 40)
BATCH = batch_id([SAMPLE.id])
RID = f"{BATCH}-{SAMPLE.id}-0badcafe"

Change = Callable[[Dump], Dump]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / FINAL_NORM_FILE).write_bytes(norm_bytes(IDENTITY.hidden_size))
    return tmp_path


def whole(identity: RunIdentity = IDENTITY) -> Dump:
    return make_dump(identity, BATCH, SAMPLE)


def answer_for(folder: Path, dump: Dump, sample: Sample = SAMPLE, **receipt: Any) -> Answer:
    """Write the dump as an engine would, its checksum true, and answer with a receipt of it."""
    header = replace(dump.header, rows_crc32=zlib.crc32(np.ascontiguousarray(dump.states).data))
    write_dump(folder / f"{RID}.dump", header, dump.token_ids, dump.positions, np.ascontiguousarray(dump.states))
    truth = {
        "file": f"{RID}.dump",
        "num_rows": header.num_tokens,
        "token_digest": header.token_digest,
        "rows_crc32": header.rows_crc32,
        "captured_inputs": [layer + 1 for layer in IDENTITY.layer_ids],
    }
    return Answer(sample, RID, cached_tokens=0, receipt={**truth, **receipt})


def refusal(folder: Path, answer: Answer, identity: RunIdentity = IDENTITY) -> ProofFailed:
    with pytest.raises(ProofFailed) as caught:
        prove(answer, identity, folder, BATCH)
    return caught.value


def rows(dump: Dump, order: Any, num_rows: int) -> Dump:
    header = replace(dump.header, num_tokens=num_rows)
    return Dump(header, dump.token_ids[order], dump.positions[order], np.ascontiguousarray(dump.states[order]))


def with_states(change: Callable[[np.ndarray], None]) -> Change:
    def changed(dump: Dump) -> Dump:
        states = np.array(dump.states)
        change(states)
        return replace(dump, states=states)

    return changed


def _nan(states: np.ndarray) -> None:
    states[17, 2, 5] = 0x7FC1


def _zero_row(states: np.ndarray) -> None:
    states[9, 1] = 0x8000  # -0 is zero too


def _repeat_states(states: np.ndarray) -> None:
    states[21:] = states[20:-1].copy()


def _normalize(states: np.ndarray) -> None:
    norm = parse_norm(norm_bytes(IDENTITY.hidden_size), "the test's")
    states[:, -1] = bits_of_float32(norm.apply(float32_of_bits(states[:, -1], "bfloat16")), "bfloat16")


FAULTS: dict[str, tuple[str, Change]] = {
    "the last row dropped": ("short-dump", lambda d: rows(d, slice(0, 39), 39)),
    "one row left of a cached prompt": ("short-dump", lambda d: rows(d, slice(39, 40), 1)),
    "a row duplicated at the end": ("long-dump", lambda d: rows(d, [*range(40), 39], 41)),
    "a row duplicated in the middle": ("token-ids", lambda d: rows(d, [*range(20), *range(19, 39)], 40)),
    "another request's rows": (
        "token-ids",
        lambda d: replace(make_dump(IDENTITY, BATCH, OTHER), header=d.header),
    ),
    "a gap in the positions": ("positions", lambda d: replace(d, positions=d.positions + (d.positions > 30))),
    "a digest of other tokens": ("token-digest", lambda d: replace(d, header=replace(d.header, token_digest=OTHER.id))),
    "another sample's dump": ("other-request", lambda d: replace(d, header=replace(d.header, sample_id=OTHER.id))),
    "another batch's dump": ("other-request", lambda d: replace(d, header=replace(d.header, batch_id=OTHER.id))),
    "another run's dump": ("other-request", lambda d: replace(d, header=replace(d.header, run="elsewhere"))),
    "other layers": ("layers", lambda d: replace(d, header=replace(d.header, layer_ids=(2, 6, 9)))),
    "another engine": ("engine", lambda d: replace(d, header=replace(d.header, engine="sglang 0.4"))),
    "one NaN": ("not-finite", with_states(_nan)),
    "a row of zeros": ("all-zero", with_states(_zero_row)),
    "all zero": ("all-zero", with_states(lambda states: states.fill(0))),
    "states repeated for the next token": ("repeated-row", with_states(_repeat_states)),
    "the final norm applied": ("final-norm-applied", with_states(_normalize)),
}


def test_a_whole_dump_passes(folder: Path) -> None:
    """A dump with one right row per token is accepted, and its path is returned."""
    assert prove(answer_for(folder, whole()), IDENTITY, folder, BATCH) == folder / f"{RID}.dump"


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_refused_by_name(folder: Path, fault: str) -> None:
    """A dump with this fault is refused, under the reason that is counted."""
    reason, change = FAULTS[fault]
    answer = answer_for(folder, change(whole()))
    if reason == "token-digest":
        answer = replace(answer, receipt={**answer.receipt, "token_digest": SAMPLE.id})
    assert refusal(folder, answer).reason == reason


def _normalize_before(states: np.ndarray) -> None:
    states[:, 3] = states[:, 4]


def _store_before_twice(states: np.ndarray) -> None:
    states[:, 4] = states[:, 3]


def _shift_after(states: np.ndarray) -> None:
    states[1:, 4] = states[:-1, 4].copy()
    states[0, 4] = states[0, 4][::-1]


def _repeat_after(states: np.ndarray) -> None:
    states[21, 4] = states[20, 4]


def _zero_after(states: np.ndarray) -> None:
    states[30, 4] = 0


def _nan_after(states: np.ndarray) -> None:
    states[5, 4, 9] = 0x7FC1


def _alter_last_after(states: np.ndarray) -> None:
    states[39, 4] ^= 0x8000


POST_NORM_FAULTS: dict[str, tuple[str, Callable[[np.ndarray], None]]] = {
    "a NaN after the norm": ("not-finite", _nan_after),
    "a row of zeros after the norm": ("all-zero", _zero_after),
    "a row repeated after the norm": ("repeated-row", _repeat_after),
    "the norm applied to both": ("final-norm-applied", _normalize_before),
    "the norm applied to neither": ("post-norm", _store_before_twice),
    "rows of the next token after the norm": ("post-norm", _shift_after),
    "another last row after the norm": ("post-norm", _alter_last_after),
}


@pytest.mark.parametrize("fault", POST_NORM_FAULTS)
def test_each_fault_after_the_norm_is_refused_by_name(folder: Path, fault: str) -> None:
    """Where the run stores the state after the norm it is proved too, against the one before it."""
    assert prove(answer_for(folder, whole(WITH_POST_NORM)), WITH_POST_NORM, folder, BATCH).exists()
    reason, change = POST_NORM_FAULTS[fault]
    dump = with_states(change)(whole(WITH_POST_NORM))
    assert refusal(folder, answer_for(folder, dump), WITH_POST_NORM).reason == reason


def test_a_dump_of_the_other_kind_is_refused(folder: Path) -> None:
    """An engine that stores the state after the norm for a run without it, or the reverse, is named."""
    for made, wanted in ((WITH_POST_NORM, IDENTITY), (IDENTITY, WITH_POST_NORM)):
        error = refusal(folder, answer_for(folder, whole(made)), wanted)
        assert error.reason == "layers"
        assert f"{made.num_slots} states a token, the run has {wanted.num_slots}" in error.detail


def test_a_short_dump_is_named_with_both_lengths(folder: Path) -> None:
    """The refusal of a short dump says how many rows came and how many tokens went out."""
    assert refusal(folder, answer_for(folder, rows(whole(), slice(39, 40), 1))).detail == "1 rows for 40 tokens"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cached_tokens": 9}, "cached-tokens"),
        ({"cached_tokens": -1}, "cached-tokens"),
        ({"receipt": {}}, "no-receipt"),
        ({"error": "the prompt is too long"}, "engine-refused"),
    ],
)
def test_an_answer_that_is_not_clean_is_refused(folder: Path, changes: dict[str, Any], reason: str) -> None:
    """Cached tokens, a missing receipt and SGLang's own refusal are each named."""
    assert refusal(folder, replace(answer_for(folder, whole()), **changes)).reason == reason


@pytest.mark.parametrize(
    ("receipt", "reason"),
    [
        ({"token_digest": OTHER.id}, "token-digest"),
        ({"captured_inputs": [3, 7, 10]}, "layers"),
        ({"rows_crc32": 1}, "receipt"),
        ({"file": "../../etc/passwd.dump"}, "other-request"),
        ({"error": "positions", "detail": "from 3"}, "positions"),
    ],
)
def test_a_receipt_that_says_otherwise_is_refused(folder: Path, receipt: dict[str, Any], reason: str) -> None:
    """The engine's word must agree with the dump, with the run's layers, and with what was asked."""
    assert refusal(folder, answer_for(folder, whole(), **receipt)).reason == reason


@pytest.mark.parametrize(
    ("error", "detail"), [("spool-full", "No space left on device"), ("spool-disk", "Read-only file system")]
)
def test_a_spools_disk_is_not_the_samples_fault(folder: Path, error: str, detail: str) -> None:
    """A dump that could not be written is to be asked for again, not rejected: a failing disk would empty a run."""
    answer = Answer(SAMPLE, RID, 0, {"error": error, "detail": detail})
    with pytest.raises(SpoolFull, match=detail):
        prove(answer, IDENTITY, folder, BATCH)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    """A flipped bit in the states, a cut file and a missing file are each found."""
    path = folder / f"{RID}.dump"
    answer = answer_for(folder, whole())
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    assert refusal(folder, answer).reason == "rows-checksum"
    path.write_bytes(data[:-1])
    assert refusal(folder, answer).reason == "damaged-dump"
    path.unlink()
    assert refusal(folder, answer).reason == "no-dump"


def test_a_prompt_of_one_token_repeated_passes(folder: Path) -> None:
    """Equal rows of equal tokens are no fault: a causal model gives them for one token repeated from the start."""
    sample = Sample(np.full(40, 5, np.uint32), np.zeros(40, np.uint8))
    dump = make_dump(IDENTITY, BATCH, sample)
    states = np.repeat(dump.states[:1], 40, axis=0)
    rid = f"{BATCH}-{sample.id}-0badcafe"
    header = replace(dump.header, rows_crc32=zlib.crc32(states.data))
    write_dump(folder / f"{rid}.dump", header, dump.token_ids, dump.positions, states)
    receipt = {
        "file": f"{rid}.dump",
        "num_rows": 40,
        "token_digest": sample.id,
        "rows_crc32": header.rows_crc32,
        "captured_inputs": [layer + 1 for layer in IDENTITY.layer_ids],
    }
    assert prove(Answer(sample, rid, 0, receipt), IDENTITY, folder, BATCH).exists()
