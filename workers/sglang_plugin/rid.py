"""A request's name, ``<batch id>-<sample id>-<nonce>``: warm-up and foreign requests cannot be mistaken for samples."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RID = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class RequestName:
    """What a request is for."""

    batch_id: str
    sample_id: str


def is_ours(rid: object) -> bool:
    """Whether a request asks for a dump."""
    return isinstance(rid, str) and _RID.fullmatch(rid) is not None


def parse_rid(rid: str) -> RequestName:
    """Raises ValueError for a request that is not ours."""
    match = _RID.fullmatch(rid)
    if match is None:
        raise ValueError(f"request {rid!r} is not named <batch id>-<sample id>-<nonce>")
    return RequestName(match[1], match[2])
