"""Engines that several files share: a start takes about 14 s on two cores, and an idle engine sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.engines import Served, served, tiny_settings

CHUNK_TOKENS = 64


@dataclass(frozen=True, slots=True)
class FaultSwitch:
    """The file that a running engine reads its fault from."""

    path: Path

    def set(self, fault: str) -> None:
        self.path.write_text(fault)


@pytest.fixture(scope="session")
def _fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fault") / "fault"
    path.write_text("")
    return path


@pytest.fixture
def switch(_fault_file: Path) -> Iterator[FaultSwitch]:
    """Off before and after each test."""
    switch = FaultSwitch(_fault_file)
    yield switch
    switch.set("")


@pytest.fixture(scope="session")
def faulty_engine(tmp_path_factory: pytest.TempPathFactory, _fault_file: Path) -> Iterator[Served]:
    """One engine whose fault is what the switch says at the moment; it joins chunks of 64 tokens."""
    engine = {"chunked_prefill_tokens": CHUNK_TOKENS, "max_prefill_tokens": 512}
    with served(tiny_settings("llama", tmp_path_factory.mktemp("faults"), engine=engine), f"@{_fault_file}") as running:
        yield running


@pytest.fixture(scope="session")
def radix_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An engine with its prefix cache on."""
    with served(tiny_settings("llama", tmp_path_factory.mktemp("radix")), "radix-cache") as running:
        yield running
