"""``eaglefeed produce --show N``: conversations with their supervised tokens in colour, for a person to look at."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import numpy as np

from eaglefeed.records import Sample
from producer.pool import Recipe
from producer.rows import Row
from producer.tokens import Prepared

SUPERVISED, PLAIN, END = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"
OPEN, CLOSE = "⟦", "⟧"
"""Around supervised tokens where there is no colour."""


def show(recipe: Recipe, rows: Iterable[Row], count: int, file: TextIO | None = None) -> int:
    """Print the first ``count`` rows as they would be learned; rejected ones with their reason."""
    out = file or sys.stdout
    preparer = recipe.preparer()
    tokenizer = preparer.template.tokenizer
    coloured = out.isatty() and "NO_COLOR" not in os.environ
    for number, row in enumerate(rows, 1):
        out.write(_block(tokenizer, preparer.prepare([row])[0], coloured))
        if number == count:
            break
    return 0


def _block(tokenizer: Any, row: Prepared, coloured: bool) -> str:
    title = f"── {row.file} line {row.line} {row.row_id} ".rstrip() + " "
    if row.sample is None:
        return f"{title}── rejected, {row.reason}: {row.detail}\n\n"
    sample = row.sample
    counts = f"{row.shape}, {sample.num_tokens} tokens, {sample.num_supervised_tokens} supervised"
    return f"{title}── {counts}\n{coloured_text(tokenizer, sample, coloured)}\n\n"


def coloured_text(tokenizer: Any, sample: Sample, coloured: bool) -> str:
    """The sample's text, supervised runs green and the others dim; bracketed without colours."""
    edges = np.flatnonzero(np.diff(sample.loss_mask)) + 1
    parts = []
    for ids, mask in zip(np.split(sample.token_ids, edges), np.split(sample.loss_mask, edges), strict=True):
        text = _printable(tokenizer.decode(ids.tolist(), skip_special_tokens=False))
        if coloured:
            parts.append(f"{SUPERVISED if mask[0] else PLAIN}{text}{END}")
        else:
            parts.append(f"{OPEN}{text}{CLOSE}" if mask[0] else text)
    return "".join(parts)


def _printable(text: str) -> str:
    """Data may hold escape sequences; a terminal must not obey them."""
    return "".join(char if char in "\n\t" or char.isprintable() else f"\\x{ord(char):02x}" for char in text)
