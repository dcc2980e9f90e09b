"""What is read from disk, Redis or store may be anything: only our own errors, bounded memory, no hang.

Each reader gets real inputs with wounds: bytes changed, cut or put in, JSON values replaced by others, checksums made
right again where a checksum would stop all wounds at the door. ``EAGLEFEED_FUZZ_EXAMPLES`` is how many each gets
(``scripts/fuzz MINUTES`` runs each for a time).
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglefeed.dump import check_rows, read_dump, read_header, write_dump
from eaglefeed.errors import EaglefeedError
from eaglefeed.identity import RunIdentity
from eaglefeed.manifest import Manifest, StoredSample
from eaglefeed.records import Batch
from eaglefeed.shard import ShardReader
from eaglefeed.shard_writer import write_shard
from producer.conversations import find_shape, parse, read
from producer.rows import Row
from tests.runs import make_dump, make_identity, make_sample

EXAMPLES = int(os.environ.get("EAGLEFEED_FUZZ_EXAMPLES", "150"))
MAX_BYTES = 64 << 20
MAX_SECONDS = 5.0
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

IDENTITY = make_identity(hidden_size=8)
BATCH = Batch("synthetic", tuple(make_sample(number, length) for number, length in enumerate((3, 40))))

HUGE = st.sampled_from([0, -1, 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, 1e308, -0.5, float("nan")])
JUNK = st.recursive(
    st.none() | st.booleans() | HUGE | st.integers() | st.text(max_size=8) | st.just("../../etc/passwd"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def wounded_bytes(draw: Callable[..., Any], data: bytes) -> bytes:
    """Some bytes changed, cut out, put in, or the end cut off."""
    wounded = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(wounded) - 1)))
        kind = draw(st.sampled_from(["change", "insert", "remove", "truncate", "number"]))
        if kind == "change" and wounded:
            wounded[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            wounded[at:at] = draw(st.binary(max_size=9))
        elif kind == "remove":
            del wounded[at : at + draw(st.integers(1, 64))]
        elif kind == "truncate":
            del wounded[at:]
        else:
            wounded[at : at + 4] = struct.pack("<I", draw(st.sampled_from([0, 1, 2**31, 2**32 - 1])))
    return bytes(wounded)


@st.composite
def wounded_json(draw: Callable[..., Any], record: Any) -> Any:
    """Some values replaced by junk, at any depth, or keys gone."""
    wounded = json.loads(json.dumps(record))
    for _ in range(draw(st.integers(1, 3))):
        place, parent = wounded, None
        key: Any = None
        while isinstance(place, dict | list) and place and (parent is None or draw(st.booleans())):
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            parent, key = place, draw(st.sampled_from(keys))
            place = parent[key]
        if parent is None:
            return draw(JUNK)
        if isinstance(parent, dict) and draw(st.integers(0, 4)) == 0:
            del parent[key]
        else:
            parent[key] = draw(JUNK)
    return wounded


@contextmanager
def only_our_errors() -> Iterator[None]:
    """No other exception, no more than ``MAX_BYTES`` at once, no more than ``MAX_SECONDS``."""
    tracemalloc.start()
    begun = time.monotonic()
    try:
        yield
    except EaglefeedError:
        pass
    finally:
        peak, seconds = tracemalloc.get_traced_memory()[1], time.monotonic() - begun
        tracemalloc.stop()
    assert peak < MAX_BYTES, f"{peak >> 20} MiB"
    assert seconds < MAX_SECONDS, f"{seconds:.1f} s"


@pytest.fixture(scope="module")
def dump_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("dump") / "one.dump"
    dump = make_dump(IDENTITY, BATCH.id, BATCH.samples[1])
    write_dump(path, dump.header, dump.token_ids, dump.positions, dump.states)
    return path.read_bytes()


@pytest.fixture(scope="module")
def shard_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("shard") / "one.safetensors"
    write_shard(path, IDENTITY, BATCH, {each.id: make_dump(IDENTITY, BATCH.id, each) for each in BATCH.samples})
    return path.read_bytes()


def use_dump(path: Path) -> None:
    read_header(path)
    dump = read_dump(path)
    check_rows(dump)
    np.asarray(dump.states).sum()


@fuzz
@given(data=st.data())
def test_dump_reader_takes_any_bytes(data: st.DataObject, dump_bytes: bytes, tmp_path: Path):
    """A dump with wounds anywhere is read, or refused as CorruptData."""
    path = tmp_path / "wounded.dump"
    path.write_bytes(data.draw(wounded_bytes(dump_bytes)))
    with only_our_errors():
        use_dump(path)


@fuzz
@given(data=st.data())
def test_dump_reader_takes_any_header(data: st.DataObject, dump_bytes: bytes, tmp_path: Path):
    """A header with any values, under a right checksum, is read or refused; no count in it costs memory."""
    length = struct.unpack("<I", dump_bytes[8:12])[0]
    start = -(-(16 + length) // 4096) * 4096
    record = data.draw(wounded_json(json.loads(dump_bytes[16 : 16 + length])))
    text = json.dumps(record).encode()
    head = dump_bytes[:8] + struct.pack("<II", len(text), zlib.crc32(text)) + text
    path = tmp_path / "wounded.dump"
    path.write_bytes(head + bytes(-len(head) % 4096) + dump_bytes[start:])
    with only_our_errors():
        use_dump(path)


def use_shard(data: bytes) -> None:
    reader = ShardReader(lambda start, end: data[start:end], len(data), "wounded")
    for sample in reader.samples:
        reader.read(sample)


@fuzz
@given(data=st.data())
def test_shard_reader_takes_any_bytes(data: st.DataObject, shard_bytes: bytes):
    """A shard with wounds anywhere is read, or refused as CorruptData."""
    wounded = data.draw(wounded_bytes(shard_bytes))
    with only_our_errors():
        use_shard(wounded)


@fuzz
@given(data=st.data())
def test_shard_reader_takes_any_header(data: st.DataObject, shard_bytes: bytes):
    """A shard's header with any values is read or refused."""
    length = struct.unpack("<Q", shard_bytes[:8])[0]
    text = json.dumps(data.draw(wounded_json(json.loads(shard_bytes[8 : 8 + length])))).encode()
    text += b" " * max(0, length - len(text))
    with only_our_errors():
        use_shard(struct.pack("<Q", len(text)) + text + shard_bytes[8 + length :])


def manifest_record() -> dict[str, Any]:
    samples = tuple(
        StoredSample(each.id, each.num_tokens, 1, each.num_tokens, 0, 100, "crc32:0", "crc32:0")
        for each in BATCH.samples
    )
    return json.loads(Manifest("synthetic", BATCH.id, "synthetic/x", 100, "crc32:0", 200, samples).to_json())  # type: ignore[no-any-return]


@fuzz
@given(data=st.data())
def test_manifest_reader_takes_anything(data: st.DataObject):
    """A manifest with any values is read, with its types, or refused as CorruptData."""
    record = data.draw(wounded_json(manifest_record()))
    text = json.dumps(record).encode()
    text = data.draw(wounded_bytes(text)) if data.draw(st.booleans()) else text
    with only_our_errors():
        manifest = Manifest.from_json(text)
        manifest.to_json()
        assert isinstance(manifest.num_tokens, int)


@fuzz
@given(data=st.data())
def test_run_reader_takes_anything(data: st.DataObject):
    """A run.json with any values is read or refused as CorruptData."""
    record = data.draw(wounded_json(json.loads(IDENTITY.to_json())))
    text = json.dumps(record).encode()
    with only_our_errors():
        identity = RunIdentity.from_json(text)
        assert identity.bytes_per_token > 0 and identity.num_slots > 0 and json.loads(identity.to_json())


@fuzz
@given(data=st.data())
def test_job_payload_takes_anything(data: st.DataObject):
    """A payload with any values is the batch that its id names, or refused as CorruptData."""
    payload = data.draw(wounded_json(BATCH.to_payload()))
    with only_our_errors():
        assert Batch.from_payload(payload).id == payload["batch_id"]


@fuzz
@given(claimed=st.integers(1, 2**26), text=st.text(alphabet="AQID+/=", max_size=64))
def test_job_payload_takes_no_memory_on_a_claim(claimed: int, text: str):
    """A payload that claims many tokens and holds few costs nothing."""
    payload = {**BATCH.to_payload(), "lengths": [claimed], "tokens": text, "masks": text}
    with only_our_errors():
        Batch.from_payload(payload)


CONVERSATIONS = (
    {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}], "system": "be kind"},
    {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
        ]
    },
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}], "tools": []},
    {"instruction": "do", "input": "this", "output": "done", "history": [["a", "b"]]},
    {"prompt": "a", "response": "b"},
    {"text": "<|start|>user hi<|end|>"},
    {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "attention_mask": [1, 1, 1]},
)


@fuzz
@given(data=st.data())
def test_conversation_reader_takes_anything(data: st.DataObject):
    """A row of any shape, with any values, becomes content or is rejected with a reason."""
    text = json.dumps(data.draw(wounded_json(data.draw(st.sampled_from(CONVERSATIONS))))).encode()
    text = data.draw(wounded_bytes(text)) if data.draw(st.booleans()) else text
    with only_our_errors():
        record = parse(Row("file", 1, text))
        content = read(record, find_shape(record))
        dataclasses.asdict(content)
