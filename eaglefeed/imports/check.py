"""Report what is wrong in a trainer's dumps; nothing is changed.

Every file is read once: rows against tokens, padding, zeros, NaN, the mask; then the folder as a whole: the same sample
in two files, token ids that the states do not belong to, a final state on the other side of the norm.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglefeed.bits import bits_of_torch
from eaglefeed.errors import EnvironmentFault, UsageError
from eaglefeed.form import has_torch
from eaglefeed.imports.evidence import Evidence, Traces
from eaglefeed.imports.faults import KINDS, Fault, own_faults
from eaglefeed.imports.foreign import BadDump, ForeignSample, Reader
from eaglefeed.imports.readers import READERS, reader_for
from eaglefeed.progress import Progress
from eaglefeed.records import sample_id
from eaglefeed.threads import in_order

EXAMPLE = """examples:
  eaglefeed check --format specforge /data/features
  eaglefeed check --format speculators /data/sharegpt --json > faults.json"""


@dataclass(frozen=True, slots=True)
class Look:
    """What one reading of a file showed."""

    path: str
    faults: tuple[Fault, ...]
    sample_id: str = ""
    num_tokens: int = 0
    num_rows: int = 0
    shape: tuple[int, int] = (0, 0)
    states_crc32: int = 0
    final_state: str = ""
    traces: Traces | None = None
    partial: tuple[Traces, ...] = ()
    """Of a file with fewer or more rows than tokens: its rows beside the first tokens, and beside the last."""


@dataclass
class Report:
    """What a folder holds.

    Attributes:
        files, tokens: all that were looked at.
        untested: whole files whose tokens occur in too few others to prove their ids.
    """

    files: int = 0
    tokens: int = 0
    untested: int = 0
    faults: list[Fault] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """For a person: the totals, then each fault."""
        bad = len({fault.path for fault in self.faults})
        yield f"{self.files:,} files, {self.tokens:,} tokens: {bad:,} files with faults"
        for kind, count in sorted(Counter(fault.kind for fault in self.faults).items()):
            yield f"  {count:,} {kind}: {KINDS[kind]}"
        if self.untested:
            yield f"  {self.untested:,} files share too few tokens with others to prove their ids"
        for fault in self.faults:
            yield f"{fault.path}: {fault.kind}: {fault.detail}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the trainer's folder")
    parser.add_argument("--format", required=True, choices=READERS, help="whose format")
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count() or 1), help="files read at once")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def main(parsed: argparse.Namespace) -> int:
    if not has_torch():
        raise EnvironmentFault("trainers' dumps are read with torch: pip install torch")
    report = check_folder(reader_for(parsed.format), parsed.folder, max(1, parsed.threads), parsed.quiet)
    if parsed.json:
        print(json.dumps(asdict(report)))
    else:
        print("\n".join(report.lines()))
    return 1 if report.faults else 0


def check_folder(reader: Reader, folder: Path, threads: int = 2, quiet: bool = False) -> Report:
    """Look at every file, then at the folder.

    Raises:
        UsageError: there is no file of that format below ``folder``.
    """
    return judge(list(looks_of(reader, folder, threads, quiet)), reader.name, folder)


def judge(looks: list[Look], format_name: str, folder: Path) -> Report:
    """The files' own faults, and those that only the folder shows."""
    if not looks:
        raise UsageError(f"{folder}: no {format_name} files there")
    report = Report(len(looks), sum(look.num_tokens for look in looks))
    for look in looks:
        report.faults += look.faults
    _judge_together(looks, report)
    report.faults.sort(key=lambda fault: (fault.path, fault.kind))
    return report


def look_at(reader: Reader, folder: Path, path: Path) -> Look:
    """Read one file and keep what the folder's judgement needs of it."""
    name = str(path.relative_to(folder))
    try:
        sample = reader.read(path)
    except BadDump as error:
        return Look(name, (Fault(name, error.kind, error.detail),))
    faults = tuple(own_faults(name, sample))
    whole = not any(fault.kind in ("short", "long", "padded", "zero-rows", "not-finite") for fault in faults)
    return Look(
        name,
        faults,
        sample_id(sample.token_ids.numpy()),
        len(sample.token_ids),
        len(sample.aux),
        (sample.aux.shape[1], sample.aux.shape[2]),
        _crc32(sample),
        sample.final_state,
        Evidence().trace(sample) if whole else None,
        _partial_traces(sample) if any(fault.kind in ("short", "long") for fault in faults) else (),
    )


def _partial_traces(sample: ForeignSample) -> tuple[Traces, ...]:
    count = min(len(sample.token_ids), len(sample.aux), len(sample.final))
    rows = replace(sample, aux=sample.aux[:count], final=sample.final[:count])
    sides = (sample.token_ids[:count], sample.token_ids[len(sample.token_ids) - count :])
    return tuple(Evidence().trace(replace(rows, token_ids=side)) for side in sides)


def looks_of(reader: Reader, folder: Path, threads: int, quiet: bool) -> Iterator[Look]:
    paths = list(reader.paths(folder))
    with Progress(f"check {reader.name}", len(paths), "files", quiet) as progress:
        bad = 0
        for number, look in enumerate(in_order(lambda path: look_at(reader, folder, path), paths, threads)):
            bad += bool(look.faults)
            progress.update(number + 1, faulty=bad)
            yield look


def _judge_together(looks: list[Look], report: Report) -> None:
    usual = Counter(look.shape for look in looks if look.traces).most_common(1)
    whole = []
    for look in looks:
        if look.traces and look.shape != usual[0][0]:
            K, H = look.shape
            detail = f"{K} layers of width {H}; the rest has {usual[0][0][0]} of {usual[0][0][1]}"
            report.faults.append(Fault(look.path, "other-width", detail))
        elif look.traces:
            whole.append(look)
    mismatched = _judge_tokens(whole, looks, report)
    _judge_norms(whole, report)
    _judge_copies(looks, mismatched, report)


def _judge_tokens(whole: list[Look], looks: list[Look], report: Report) -> set[str]:
    evidence = Evidence({look.path: look.traces for look in whole if look.traces})
    mismatched = evidence.mismatched()
    for path, agreement in mismatched.items():
        detail = f"its rows agree with its tokens {100 * agreement:.0f} % as well as the other files' do"
        report.faults.append(Fault(path, "mismatched-ids", detail))
    report.untested = len(whole) - len(evidence.agreement())
    return set(mismatched)


def _judge_norms(whole: list[Look], report: Report) -> None:
    for kind in sorted({look.final_state for look in whole}):
        group = Evidence({look.path: look.traces for look in whole if look.traces and look.final_state == kind})
        for path, (size, usual) in group.other_norm().items():
            detail = f"its final state's rows measure {size:.3g} where the folder's measure {usual:.3g}"
            report.faults.append(Fault(path, "other-norm", detail))


def _judge_copies(looks: list[Look], mismatched: set[str], report: Report) -> None:
    first: dict[str, Look] = {}
    whole = {look.sample_id for look in looks if look.traces and look.path not in mismatched}
    for look in looks:
        if look.partial and look.sample_id in whole and not _belongs(look, looks):
            _call_mismatched(look, report)
            continue
        # What has another's ids, or cannot be read, is no second copy of it.
        if not look.sample_id or look.path in mismatched:
            continue
        kept = first.setdefault(look.sample_id, look)
        if kept is not look:
            same = "with the same states" if kept.states_crc32 == look.states_crc32 else "with other states"
            report.faults.append(Fault(look.path, "duplicate", f"the sample of {kept.path}, {same}"))


def _belongs(look: Look, looks: list[Look]) -> bool:
    """Whether the rows of a file with another count are those of its tokens, from the front or to the end."""
    others = {each.path: each.traces for each in looks if each.traces}
    return any(look.path not in Evidence({**others, look.path: part}).mismatched() for part in look.partial)


def _call_mismatched(look: Look, report: Report) -> None:
    """Its ids are another file's: that, and not the count of rows, is what is wrong with it."""
    report.faults = [each for each in report.faults if each.path != look.path or each.kind not in ("short", "long")]
    detail = f"its {look.num_tokens} token ids are another file's, and its {look.num_rows} rows are of other tokens"
    report.faults.append(Fault(look.path, "mismatched-ids", detail))


def _crc32(sample: ForeignSample) -> int:
    return zlib.crc32(_bytes(sample.final), zlib.crc32(_bytes(sample.aux)))


def _bytes(states: Any) -> Any:
    if states.element_size() not in (2, 4):
        states = states.float()
    return bits_of_torch(states).reshape(-1).view("u1").data
