"""What may happen at any moment, drawn by a seed: kills, restarts, hangs, cut cables, full disks."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.chaos.cut_proxy import Cut
from tests.chaos.node import Node
from tests.chaos.stand import Stand
from workers.engine import Engine

Fault = Callable[[Stand, random.Random], str]
"""Breaks something, waits until it is over where it ends by itself, and says what it was."""

ENGINE_WAIT_SECONDS = 60


def extract_worker(stand: Stand, rng: random.Random) -> str:
    service = rng.choice(_node(stand, rng).extract)
    service.kill()
    return f"kill -9 {service.name}"


def storage_worker(stand: Stand, rng: random.Random) -> str:
    node = _node(stand, rng)
    node.store.kill()
    return f"kill -9 {node.store.name}"


def graceful_stop(stand: Stand, rng: random.Random) -> str:
    """SIGTERM, as an upgrade does; the worker finishes its job and is started again."""
    service = rng.choice([*_node(stand, rng).extract, _node(stand, rng).store])
    if service.process is not None and service.is_running:
        service.process.terminate()
    return f"SIGTERM {service.name}"


def engine_process(stand: Stand, rng: random.Random) -> str:
    """SGLang's server, its scheduler, or all with its supervisor."""
    engine = _node(stand, rng).engine
    family = engine.family()
    if len(family) < 2 or rng.random() < 0.3:
        engine.kill()
        return f"kill -9 {engine.name} and all below"
    victim = rng.choice(family[1:])
    with contextlib.suppress(psutil.Error):
        victim.kill()
    return f"kill -9 a process of {engine.name} ({victim.pid})"


def engine_hang(stand: Stand, rng: random.Random) -> str:
    """The scheduler stops where it stands: its port is open, its server answers, nothing is extracted.

    An engine that is still starting is waited for: it would not be missed.
    """
    engine = _node_that_extracts(stand, rng).engine
    for process in engine.family()[2:]:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    return f"hang {engine.name}"


def redis(stand: Stand, rng: random.Random) -> str:
    stand.valkey.stop(signal.SIGKILL)
    seconds = rng.uniform(0, 4)
    threading.Event().wait(seconds)
    stand.valkey.start()
    return f"kill -9 Redis, {seconds:.1f} s away"


def store(stand: Stand, rng: random.Random) -> str:
    stand.seaweed.stop(signal.SIGKILL)
    seconds = rng.uniform(0, 4)
    threading.Event().wait(seconds)
    stand.seaweed.start()
    return f"kill -9 SeaweedFS, {seconds:.1f} s away"


def store_hang(stand: Stand, rng: random.Random) -> str:
    seconds = rng.uniform(1, 5)
    stand.seaweed.pause()
    threading.Event().wait(seconds)
    stand.seaweed.resume()
    return f"SeaweedFS hangs for {seconds:.1f} s"


def producer(stand: Stand, rng: random.Random) -> str:
    """One that runs; else the last one is started again, as an operator may at any time, and killed in the middle."""
    seconds = rng.uniform(0, 4)
    running = [each for each in stand.producers if each.is_running]
    if not running:
        running = stand.producers[-1:]
        running[0].start()
        threading.Event().wait(seconds)
    running[-1].kill()
    return f"kill -9 {running[-1].name}"


def whole_node(stand: Stand, rng: random.Random) -> str:
    """All of a node's processes at once, as a power cut takes them; the node is back some seconds later."""
    node = _node(stand, rng)
    seconds = rng.uniform(1, 6)
    for service in node.services:
        service.kill(down_seconds=seconds)
    return f"kill -9 all of {node.name}, {seconds:.1f} s away"


def network(stand: Stand, rng: random.Random) -> str:
    """One node's cable to Redis and the store."""
    node, seconds = _node(stand, rng), rng.uniform(1, 8)
    how: Cut = rng.choice(("broken", "hanging"))
    for cable in node.cables:
        cable.cut(how)
    threading.Event().wait(seconds)
    for cable in node.cables:
        cable.mend()
    return f"cut {node.name} off for {seconds:.1f} s ({how})"


def full_disk(stand: Stand, rng: random.Random) -> str:
    """Its spool's disk has no byte left for some seconds."""
    node, seconds = _node(stand, rng), rng.uniform(1, 6)
    ballast = node.spool / "ballast"
    try:
        _fill(ballast, really=node.is_own_disk)
        threading.Event().wait(seconds)
    finally:
        ballast.unlink(missing_ok=True)
    return f"fill the disk of {node.name} for {seconds:.1f} s"


WEIGHTS: dict[Fault, int] = {
    extract_worker: 8,
    storage_worker: 8,
    graceful_stop: 3,
    engine_process: 1,
    engine_hang: 1,
    redis: 5,
    store: 4,
    store_hang: 4,
    producer: 5,
    whole_node: 1,
    network: 5,
    full_disk: 4,
}
"""How often each is dealt: after what takes an engine, its node is back half a minute later, so that is dealt less."""


def deal(seed: int, number: int) -> list[Fault]:
    """``number`` faults in a seeded order; each kind by its weight, and once at least where there are enough."""
    total = sum(WEIGHTS.values())
    dealt = [fault for fault, weight in WEIGHTS.items() for _ in range(max(1, number * weight // total))]
    rng = random.Random(seed)
    if len(dealt) > number:
        dealt = rng.sample(dealt, number)
    missing = number - len(dealt)
    dealt += rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=missing)
    rng.shuffle(dealt)
    return dealt


def kind_of(fault: Fault) -> str:
    return fault.__name__.replace("_", " ")


def _node(stand: Stand, rng: random.Random) -> Node:
    return rng.choice(stand.nodes)


def _node_that_extracts(stand: Stand, rng: random.Random) -> Node:
    """One whose engine is up; any, when none is for a long time."""
    nodes = rng.sample(stand.nodes, len(stand.nodes))
    for _ in range(ENGINE_WAIT_SECONDS):
        for node in nodes:
            if Engine([node.engine_url], 2).is_answering():
                return node
        threading.Event().wait(1)
    return nodes[0]


def _fill(ballast: Path, really: bool) -> None:
    if not really:  # a disk that is everybody's: a sparse file counts against the spool's budget just as well
        with ballast.open("wb") as file:
            file.truncate(1 << 40)
        return
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
