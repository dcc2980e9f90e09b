"""One node of a chaos run: its services, its spool, its cables."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cut_proxy import CutProxy
from tests.chaos.service import Service

RUN = "chaos"
DISK_BYTES = 48 << 20


@dataclass(slots=True)
class Node:
    """One GPU node: an engine, extract workers and a storage worker over one spool; its own cables."""

    name: str
    spool: Path
    engine: Service
    engine_url: str
    extract: list[Service]
    store: Service
    cables: list[CutProxy]
    is_own_disk: bool = False

    @property
    def services(self) -> list[Service]:
        return [self.engine, *self.extract, self.store]

    def dumps(self) -> list[str]:
        folder = self.spool / RUN
        found = folder.iterdir() if folder.exists() else ()
        return sorted(path.name for path in found if path.suffix in (".dump", ".shard", ".part"))


def mount_small_disk(spool: Path) -> bool:
    """A small disk of the spool's own, so that it can be filled; False where we may not mount one."""
    options = f"size={DISK_BYTES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(spool)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
