"""What ``DATA…`` names: files, globs, folders, the standard input and the hub, as one stream of rows."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eaglefeed.errors import UsageError
from producer import json_values, lines, tables
from producer.rows import Row

TEXT_ENDINGS = (".jsonl", ".ndjson", ".json")
TABLE_ENDINGS = (".parquet", ".arrow", ".feather")
PACKED_ENDINGS = (".gz", ".zst", ".zstd")
STDIN = "-"


@dataclass(frozen=True, slots=True)
class Source:
    """One file; ``path`` is None for the standard input and for the hub."""

    name: str
    path: Path | None = None

    @property
    def num_bytes(self) -> int:
        """Size on disk; 0 where it is not known."""
        return self.path.stat().st_size if self.path else 0

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of its rows add up to its size."""
        return self.path is not None and _ending(self.path) not in TABLE_ENDINGS and not _is_packed(self.path)

    def rows(self) -> Iterator[Row]:
        """All rows in order. Damage to the file itself is the last row, under the reason ``broken-file``."""
        number = 0
        try:
            for row in self._read():
                number = row.line
                yield row
        except lines.BROKEN as error:
            yield Row(self.name, number + 1, None, "broken-file", f"unreadable from here on: {error}")

    def _read(self) -> Iterator[Row]:
        if self.name.startswith("hf:"):
            return tables.read_hub(self.name)
        if self.path is not None and _ending(self.path) in TABLE_ENDINGS:
            return _guarded_table(self.path, self.name)
        return self._read_text()

    def _read_text(self) -> Iterator[Row]:
        by_line = self.path is None or _ending(self.path) != ".json"
        with lines.open_text(self.path) as file:
            if by_line and not _is_array(file.peek(1)):
                yield from lines.read_lines(file, self.name)
            else:
                yield from json_values.read_values(file, self.name)


def _is_array(head: bytes) -> bool:
    """Whether a text that should be lines is one JSON array (and not a line for each array)."""
    first, _, rest = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    a_line_each = first.rstrip().endswith(b"]") and rest.lstrip().startswith(b"[")
    return first.startswith(b"[") and not a_line_each


def find_sources(names: Iterable[str]) -> list[Source]:
    """The sources in the order given, a folder's and a glob's files sorted; the same file only once.

    Raises:
        UsageError: nothing is there, or a file's ending says nothing.
    """
    found: dict[str, Source] = {}
    for name in names:
        for source in _expand(name):
            found.setdefault(str(source.path.resolve()) if source.path else source.name, source)
    return list(found.values())


def _expand(name: str) -> list[Source]:
    if name == STDIN or name.startswith("hf:"):
        return [Source(name)]
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.exists():
        return [_file(path)]
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207  # Path.glob takes no absolute pattern
    if not matches:
        raise UsageError(f"{name}: no such file or folder, and no file matches it as a pattern")
    return [source for match in matches for source in _expand(match)]


def _folder(folder: Path) -> list[Source]:
    saved = tables.saved_files(folder)
    if saved is not None:
        return [Source(str(file), file) for file in saved]
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_known(path)]
    if not files:
        known = " ".join(TEXT_ENDINGS + TABLE_ENDINGS)
        raise UsageError(f"{folder}: no file in it ends in {known} (or these with .gz or .zst)")
    return [Source(str(path), path) for path in files]


def _file(path: Path) -> Source:
    if not path.is_file() and not path.is_fifo() and not path.is_char_device():
        raise UsageError(f"{path} is not a file")
    return Source(str(path), path)


def _ending(path: Path) -> str:
    name = path.name.lower()
    for packed in PACKED_ENDINGS:
        name = name.removesuffix(packed)
    if name.endswith(TEXT_ENDINGS + TABLE_ENDINGS):
        return "." + name.rpartition(".")[2]
    return _sniffed(path)


def _sniffed(path: Path) -> str:
    if not path.is_file():
        return ".jsonl"
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"PAR1"):
        return ".parquet"
    return ".arrow" if magic == b"ARROW1" else ".jsonl"


def _is_packed(path: Path) -> bool:
    return path.name.lower().endswith(PACKED_ENDINGS)


def _is_known(path: Path) -> bool:
    name = path.name.lower()
    for packed in PACKED_ENDINGS:
        name = name.removesuffix(packed)
    return name.endswith(TEXT_ENDINGS + TABLE_ENDINGS) and not name.startswith(".")


def _guarded_table(path: Path, name: str) -> Iterator[Row]:
    import pyarrow

    reader = tables.read_parquet if _ending(path) == ".parquet" else tables.read_arrow
    number = 0
    try:
        for row in reader(path, name):
            number = row.line
            yield row
    except (pyarrow.ArrowException, OSError) as error:
        yield Row(name, number + 1, None, "broken-file", f"unreadable from here on: {error}")
