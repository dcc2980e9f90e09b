"""Every kind of input gives its rows, with file and line, and damage costs the damaged row alone."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from eaglefeed.errors import UsageError
from producer import json_values, lines, rows
from producer.choice import chosen_rows
from producer.rows import Row
from producer.sources import Source, find_sources

RECORDS: list[dict[str, Any]] = [
    {"id": f"r{i}", "messages": [{"role": "user", "content": f'"[{i}]" {{\\'}, {"role": "assistant", "content": "ok"}]}
    for i in range(5)
]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def records_of(found: list[Row]) -> list[Any]:
    return [json.loads(row.data) if isinstance(row.data, bytes) else row.data for row in found]


def read(path: Path | str) -> list[Row]:
    return [row for source in find_sources([str(path)]) for row in source.rows()]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.zst", zstandard.compress(LINES)),
        ("a.ndjson", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n")),
        ("a.json", json.dumps(RECORDS).encode()),
        ("pretty.json", json.dumps(RECORDS, indent=2).encode()),
        ("lines.json", LINES),
        ("a.json.gz", gzip.compress(json.dumps(RECORDS).encode())),
        ("array.jsonl", json.dumps(RECORDS).encode()),
        ("no-ending", LINES),
        ("two-frames.jsonl.zst", zstandard.compress(LINES[:100]) + zstandard.compress(LINES[100:])),
    ],
)
def test_texts(tmp_path: Path, name: str, data: bytes) -> None:
    """JSONL, arrays, pretty arrays and documents in a row give the same rows, packed or not."""
    path = tmp_path / name
    path.write_bytes(data)
    assert records_of(read(path)) == RECORDS


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    """Blank lines count for the number and give no row; in a pretty array a row is where its first byte is."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n\n   \n{"a":2}\n{"a":3}')
    assert [row.line for row in read(path)] == [1, 4, 5]
    pretty = tmp_path / "a.json"
    pretty.write_text('[\n  {\n    "a": 1\n  },\n\n  {"a": 2}\n]\n')
    assert [(row.line, row.data) for row in read(pretty)] == [(2, b'{\n    "a": 1\n  }'), (6, b'{"a": 2}')]


def test_tables(tmp_path: Path) -> None:
    """Parquet, Arrow files and streams, and save_to_disk folders give their rows, numbered from 1."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet
    from datasets import Dataset, DatasetDict

    table = arrow.Table.from_pylist(RECORDS)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with arrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with arrow.ipc.new_stream(tmp_path / "stream.arrow", table.schema) as writer:
        writer.write_table(table)
    Dataset.from_list(RECORDS).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    DatasetDict({"train": Dataset.from_list(RECORDS)}).save_to_disk(str(tmp_path / "splits"))
    for name in ("a.parquet", "a.arrow", "stream.arrow", "splits"):
        found = read(tmp_path / name)
        assert records_of(found) == RECORDS, name
        assert [row.line for row in found] == [1, 2, 3, 4, 5]
    assert records_of(read(tmp_path / "saved")) == RECORDS


def test_folders_globs_and_repeats(tmp_path: Path) -> None:
    """A folder's files come sorted, other files in it are left alone, and a file named twice is read once."""
    for name in ("b.jsonl", "a.json", "sub/c.jsonl.gz", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(LINES) if name.endswith("gz") else LINES)
    names = [Path(source.name).name for source in find_sources([str(tmp_path)])]
    assert names == ["a.json", "b.jsonl", "c.jsonl.gz"]
    assert len(find_sources([str(tmp_path / "*.json*"), str(tmp_path / "b.jsonl"), str(tmp_path)])) == 3


def test_what_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    """A name that matches nothing, and a folder without data, are told apart."""
    with pytest.raises(UsageError, match="no such file"):
        find_sources([str(tmp_path / "missing.jsonl")])
    with pytest.raises(UsageError, match="no file in it ends in"):
        find_sources([str(tmp_path)])


def test_a_row_of_fifty_megabytes_is_rejected_unread(tmp_path: Path) -> None:
    """Its neighbours are read, and no more than the limit is ever held."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n{"text":"' + b"x" * 50_000_000 + b'"}\n{"a":2}\n')
    found = read(path)
    assert [(row.line, row.reason) for row in found] == [(1, ""), (2, "row-too-large"), (3, "")]
    assert "50,000,012 bytes" in found[1].detail
    array = tmp_path / "a.json"
    array.write_bytes(b'[{"a":1},{"text":"' + b"x" * 50_000_000 + b'"},{"a":2}]')
    assert [row.reason for row in read(array)] == ["", "row-too-large", ""]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_a_cut_file_is_reported_behind_its_readable_rows(tmp_path: Path, name: str) -> None:
    """A file that ends too early gives what can be read and one row that says so."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = tmp_path / name
    many = LINES * 2000
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(many, 1)[:-400])
    elif name.endswith("zst"):
        path.write_bytes(zstandard.compress(many)[:-40])
    else:
        parquet.write_table(arrow.Table.from_pylist(RECORDS), path)
        path.write_bytes(path.read_bytes()[:-20])
    found = read(path)
    assert found[-1].reason == "broken-file"
    assert all(not row.reason or row is found[-1] for row in found[:-1] if row.reason == "broken-file")


def test_an_array_cut_in_the_middle_says_so(tmp_path: Path) -> None:
    """The rows before the cut are there, the cut one is named."""
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps(RECORDS).encode()[:-20])
    found = read(path)
    assert records_of(found[:-1]) == RECORDS[:4]
    assert (found[-1].reason, found[-1].line) == ("broken-file", 1)
    path.write_bytes(json.dumps(RECORDS).encode()[:-1])
    assert [row.reason for row in read(path)] == [""] * 5 or read(path)[-1].reason == "broken-file"


def test_values_do_not_depend_on_where_reads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any size give the same values and lines."""
    data = json.dumps(RECORDS, indent=1).encode()
    expected = list(json_values.read_values(io.BytesIO(data), "a"))
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(json_values, "READ_BYTES", size)
        assert list(json_values.read_values(io.BytesIO(data), "a")) == expected


def test_long_lines_are_skipped_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the limit passes, one byte more does not."""
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 8)
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 8)
    found = list(lines.read_lines(io.BytesIO(b"12345678\n123456789\n1"), "a"))
    assert [(row.line, row.reason) for row in found] == [(1, ""), (2, "row-too-large"), (3, "")]


def test_limit_and_seed_choose_the_same_rows_every_time(tmp_path: Path) -> None:
    """The first N without a seed; with one, N rows drawn over all files, in their order."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(50)))
    sources = find_sources([str(tmp_path)])
    assert [row.line for row in chosen_rows(sources, 3, None)] == [1, 2, 3]
    drawn = [(row.file, row.line) for row in chosen_rows(sources, 20, 7)]
    assert drawn == [(row.file, row.line) for row in chosen_rows(sources, 20, 7)] == sorted(drawn)
    assert len(drawn) == 20 and len({file for file, _ in drawn}) == 2
    assert drawn != [(row.file, row.line) for row in chosen_rows(sources, 20, 8)]
    assert len(list(chosen_rows(sources, 1000, 1))) == 100
    with pytest.raises(UsageError, match="--limit"):
        chosen_rows(sources, None, 1)
    with pytest.raises(UsageError, match="standard input"):
        chosen_rows([Source("-")], 5, 1)
