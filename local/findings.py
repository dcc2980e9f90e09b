"""What a check of this machine found, and how it is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TextIO

Verdict = Literal["ok", "warning", "wrong"]
_MARKS = {"ok": ("ok     ", "32"), "warning": ("warning", "33"), "wrong": ("WRONG  ", "31")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; ``advice`` is what to do about it."""

    check: str
    verdict: Verdict
    fact: str
    advice: str = ""


def print_findings(findings: Iterable[Finding], file: TextIO | None = None) -> None:
    """A line each, with the advice below; colour only on a terminal, and never with NO_COLOR."""
    file = file or sys.stdout
    colour = file.isatty() and "NO_COLOR" not in os.environ
    for finding in findings:
        mark, code = _MARKS[finding.verdict]
        print(f"\x1b[{code}m{mark}\x1b[0m" if colour else mark, f"{finding.check:<7} {finding.fact}", file=file)
        if finding.advice:
            print(f"{'':16}-> {finding.advice}", file=file)
