"""What a node says of itself in Redis, for the page: a hash that dies with the node; and whose name it is."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any, Literal

from redis import Redis

from config import names
from config.secrets import redact
from eaglefeed.errors import EnvironmentFault

TTL_SECONDS = 60
KEPT_SECONDS = 7 * 24 * 3600
OWNER_TTL_SECONDS = 30
SPOOL_ID_NAME = ".spool-id"

EngineState = Literal["starting", "proving", "ready", "down", "paused"]

# KEYS: owner.  ARGV: spool id, ttl.  Answers the owner: ours, or the other one's.
_CLAIM = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return owner end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return ARGV[1]
"""


# KEYS: owner.  ARGV: spool id.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class NameTaken(EnvironmentFault):
    """Two nodes with one name would take each other's store jobs, and neither has the other's dumps."""


def publish(redis: Redis, node: str, fields: dict[str, str | int | float]) -> None:
    """Say how the node is now; ``fields`` are those of ``names.node_key``, the others keep their value.

    Texts are shown on the page, and often are some library's own words: secrets are taken out of them here.
    """
    said = {name: redact(value) if isinstance(value, str) else value for name, value in fields.items()}
    mapping: dict[Any, Any] = {"updated_at": time.time(), **said}
    with redis.pipeline() as pipe:
        pipe.zadd(names.NODES_KEY, {node: time.time()})
        pipe.zremrangebyscore(names.NODES_KEY, 0, time.time() - KEPT_SECONDS)
        pipe.hset(names.node_key(node), mapping=mapping)
        pipe.expire(names.node_key(node), TTL_SECONDS)
        pipe.execute()


def device_name(setting: str, gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """What an engine with ``engine.device = setting`` runs on: ``cpu``, or ``NVIDIA H200 x 8`` by the driver's word."""
    if setting == "cpu":
        return "cpu"
    texts = [path.read_text("utf-8", "replace") for path in sorted(gpus.glob("*/information"))]
    models = [line.partition(":")[2].strip() for text in texts for line in text.splitlines() if "Model:" in line]
    if not models:
        return "cpu" if setting == "auto" else setting
    return models[0] if len(models) == 1 else f"{models[0]} x {len(models)}"


def claim(redis: Redis, node: str, spool_id: str) -> None:
    """Hold the node's name for this spool, until ``OWNER_TTL_SECONDS`` after the last call.

    Raises NameTaken while another spool's workers hold it.
    """
    owner = redis.eval(_CLAIM, 1, names.owner_key(node), spool_id, OWNER_TTL_SECONDS)
    if owner != spool_id.encode():
        raise NameTaken(
            f"another machine or spool works as node {node!r}: give each node its own EAGLEFEED_NODE "
            f"(a node that has just been replaced is forgotten after {OWNER_TTL_SECONDS} s)"
        )


def release(redis: Redis, node: str, spool_id: str) -> None:
    """Give the name up when it is ours; the spool's other workers claim it again within seconds."""
    redis.eval(_RELEASE, 1, names.owner_key(node), spool_id)


def spool_id(folder: Path) -> str:
    """The spool's own random id, written into it once: what tells two nodes with one name apart."""
    path = folder / SPOOL_ID_NAME
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(secrets.token_hex(16))
    except FileExistsError:
        pass
    found = path.read_text("ascii", "replace").strip()[:64]
    return found or f"empty-{path.stat().st_ino}"
