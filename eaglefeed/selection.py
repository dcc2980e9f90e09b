"""Which samples: conditions on the index, as ``--select`` writes them.

::

    tokens>=64,tokens<2048        lengths
    supervised>0                  supervised tokens
    id=0f3c…                      one sample, by its id or the beginning of it
    ids=@FILE                     the ids in a file, one a line
    first=1000                    the first so many of what is left
    every=10  every=10+3          each tenth, from the fourth
    shuffle=7                     another order, by that seed (before ``first``)
"""

from __future__ import annotations

import operator
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eaglefeed.batch_sampler import shuffled
from eaglefeed.errors import UsageError
from eaglefeed.index import RunIndex

IntArray = npt.NDArray[np.int64]

_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_CONDITION = re.compile(r"\s*([a-z]+)\s*(>=|<=|==|!=|>|<|=)\s*(\S+)\s*")


def select_rows(index: RunIndex, text: str) -> IntArray:
    """The rows that ``text`` names, conditions applied from left to right.

    Raises:
        UsageError: with the condition that is not one of the module's list.
    """
    rows = np.arange(len(index), dtype=np.int64)
    for condition in filter(None, (part.strip() for part in text.split(","))):
        rows = _apply(index, rows, condition)
    return rows


def _apply(index: RunIndex, rows: IntArray, condition: str) -> IntArray:
    match = _CONDITION.fullmatch(condition)
    name, sign, value = match.groups() if match else ("", "", "")
    if name in ("tokens", "supervised"):
        column = index.num_tokens if name == "tokens" else index.num_supervised_tokens
        mask: npt.NDArray[np.bool_] = _COMPARISONS[sign](column[rows], _number(value, condition))
        return rows[mask]
    if sign == "=" and name in ("id", "ids"):
        return _by_ids(index, rows, value, condition)
    if sign == "=" and name == "first":
        return rows[: _number(value, condition)]
    if sign == "=" and name == "shuffle":
        return rows[shuffled(len(rows), _number(value, condition), 0)]
    if sign == "=" and name == "every":
        step, _, start = value.partition("+")
        if _number(step, condition) > 0:
            return rows[_number(start or "0", condition) :: _number(step, condition)]
    raise UsageError(
        f"--select {condition!r}: use tokens>=N, supervised>N, id=HEX, ids=@FILE, first=N, every=N or shuffle=SEED, "
        "separated by commas"
    )


def _by_ids(index: RunIndex, rows: IntArray, value: str, condition: str) -> IntArray:
    prefixes = [value]
    if value.startswith("@"):
        try:
            prefixes = Path(value[1:]).read_text("utf-8").split()
        except OSError as error:
            raise UsageError(f"--select {condition!r}: {error}") from error
    if not all(re.fullmatch(r"[0-9a-f]{1,32}", prefix) for prefix in prefixes):
        raise UsageError(f"--select {condition!r}: sample ids are hexadecimal digits")
    if all(len(prefix) == 32 for prefix in prefixes):
        try:
            wanted = index.rows_of(prefixes)
        except KeyError as error:
            raise UsageError(f"--select {condition!r}: {error.args[0]}") from error
        return wanted[np.isin(wanted, rows)]
    ids = np.array([index.sample_id(row) for row in rows])
    mask = np.zeros(len(rows), bool)
    for prefix in prefixes:
        mask |= np.char.startswith(ids, prefix)
    kept: IntArray = rows[mask]
    return kept


def _number(text: str, condition: str) -> int:
    if not re.fullmatch(r"\d[\d_]*", text):
        raise UsageError(f"--select {condition!r}: {text!r} is not a number")
    return int(text)
