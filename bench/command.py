"""Measure a part of eaglefeed on this machine, against what it is meant to beat."""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

EXAMPLE = "example: eaglefeed bench codec --json"
_NOT_BENCHES = {"__init__", "command"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A subcommand for each module of this folder that has ``add_arguments`` and ``main``."""
    benches = parser.add_subparsers(dest="bench", metavar="BENCH", required=True)
    for name, sentence in _benches():
        bench = benches.add_parser(name, help=sentence, description=sentence)
        module = importlib.import_module(f"bench.{name}")
        module.add_arguments(bench)
        bench.set_defaults(bench_main=module.main)


def main(parsed: argparse.Namespace) -> int:
    return int(parsed.bench_main(parsed) or 0)


def _benches() -> Iterator[tuple[str, str]]:
    """Name and first sentence of each bench; modules without the two functions only serve others."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if path.stem not in _NOT_BENCHES and {"add_arguments", "main"} <= functions:
            yield path.stem, (ast.get_docstring(tree) or "").partition("\n")[0]
