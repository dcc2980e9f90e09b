"""One command at a time works in a folder of state."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eaglefeed.errors import EnvironmentFault


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process; raises EnvironmentFault when another holds it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EnvironmentFault(
                f"{folder} is in use by another `eaglefeed run` of the same run; wait for it, or choose --state DIR"
            ) from error
        yield
