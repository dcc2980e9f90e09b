"""The house's own rules: imports go one way, folders are ours, only the library enters the wheel."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import tomllib

CHECKOUT = Path(__file__).parents[2]
MAY_IMPORT = {
    "eaglefeed": {"eaglefeed"},
    "config": {"config", "eaglefeed"},
    "storage": {"storage", "config", "eaglefeed"},
    "producer": {"producer", "storage", "config", "eaglefeed"},
    "workers": {"workers", "storage", "config", "eaglefeed"},
    "dashboard": {"dashboard", "storage", "config", "eaglefeed"},
    "local": {"local", "workers", "storage", "config", "eaglefeed"},  # doctor reads the list of hooks
}
LONGEST_FILE = 250
DYNAMIC = {"eaglefeed/cli.py"}
"""The command finds its verbs by name; nothing else may."""


def imports_of(path: Path) -> set[str]:
    """Top-level names a module imports, at its head or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_one_way(folder: str) -> None:
    """eaglefeed <- config <- storage <- {producer, workers}; dashboard and local only read."""
    wrong = [
        f"{path.relative_to(CHECKOUT)} imports {name}"
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
        for name in sorted(imports_of(path) & MAY_IMPORT.keys())
        if name not in MAY_IMPORT[folder]
    ]
    assert not wrong


@pytest.mark.parametrize("folder", [*MAY_IMPORT, "tests", "bench"])
def test_each_folder_is_the_checkouts_own(folder: str) -> None:
    """A foreign package of the same name (PyPI has them all) never shadows ours."""
    module = importlib.import_module(folder)
    assert [Path(place).resolve() for place in module.__path__] == [CHECKOUT / folder]


def test_only_the_library_enters_the_wheel() -> None:
    """Every package of the wheel is eaglefeed or below it, and every one below it is there."""
    packages = set(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {path.parent for path in (CHECKOUT / "eaglefeed").rglob("*.py")}
    assert packages == {".".join(folder.relative_to(CHECKOUT).parts) for folder in folders}


def test_each_file_can_be_seen_whole() -> None:
    """At most 250 lines: what grows beyond has a second thing in it, which wants a name."""
    files = [path for folder in (*MAY_IMPORT, "bench", "examples") for path in (CHECKOUT / folder).rglob("*.py")]
    lengths = {str(path.relative_to(CHECKOUT)): len(path.read_text("utf-8").splitlines()) for path in files}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


def test_nothing_pickles() -> None:
    """No module of ours imports pickle: formats and jobs are plain bytes and JSON."""
    files = [path for folder in MAY_IMPORT for path in (CHECKOUT / folder).rglob("*.py")]
    assert not [str(path) for path in files if "pickle" in imports_of(path)]
