"""Shared fixtures: one valkey-server and one SeaweedFS for the whole session, started when first asked for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from config.native_exit import keep_native_data
from tests.services import Seaweed, Valkey


def pytest_configure() -> None:
    """A crash of a native package at the very end would turn passed tests into a failed stage."""
    keep_native_data()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real valkey-server. Tests share it: use names of your own, or another database number."""
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for a real S3 with authentication; its bucket is ``tests.services.BUCKET``."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server.environment
    server.stop(signal.SIGKILL)  # its data is thrown away; an orderly end takes ten seconds
