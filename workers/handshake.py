"""Is the patch active? One short request must come back with a receipt; SGLang itself only logs what fails to apply."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eaglefeed.errors import EnvironmentFault
from eaglefeed.identity import RunIdentity
from eaglefeed.records import Sample, batch_id
from workers.answered_dump import remove_dump
from workers.engine import Engine


def shake_hands(engine: Engine, identity: RunIdentity, spool: Path) -> None:
    """Ask each replica for a dump of three tokens, and remove it.

    Raises:
        EnvironmentFault: an answer without a receipt: the hooks are not active in that process.
    """
    tokens = np.arange(3, dtype=np.uint32) % identity.vocab_size
    sample = Sample(tokens, np.zeros(3, np.uint8))
    for url in engine.urls:
        (answer,) = Engine([url], min(engine.timeout_seconds, 120)).ask(batch_id([sample.id]), [sample])
        if "file" not in answer.receipt:
            said = answer.error or answer.receipt.get("detail") or "no receipt in the answer"
            raise EnvironmentFault(f"{url}: eaglefeed's hooks are not active in this engine: {said}")
        remove_dump(answer, spool / identity.run)
