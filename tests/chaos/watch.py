"""What a chaos run looks at all the while: how soon each fault is over, and whether anything grows."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

import psutil
from redis.exceptions import RedisError

from tests.chaos.service import Service
from tests.chaos.stand import Stand

POLL_SECONDS = 0.2
SERVERS = ("Redis", "SeaweedFS")
"""Not ours: their memory is printed, and no failure."""
MEMORY_INTERVAL_SECONDS = 1.0
MEMORY_BYTES = 1200 << 20
"""No worker may take more than this."""
GROWTH_BYTES = 96 << 20
"""The second half of a run may take so much more than the first half at its most; a leak of 2,000 samples shows."""


@dataclass(slots=True)
class Recovery:
    """One fault's end: seconds from when it was over (what was killed may start again, what was cut is whole).

    Attributes:
        in_hand: the jobs that were being run when it came, as RQ names their executions; {} when there was none.
        num_in_work: samples that were enqueued and not settled when it came.
        handed_on: until each job in hand was done, or given back to its queue.
        stored: until the next sample was stored.
    """

    kind: str
    in_hand: set[bytes]
    num_in_work: int
    num_stored: int | None
    begun: float = field(default_factory=time.monotonic)
    handed_on: float | None = None
    stored: float | None = None


class Watch(threading.Thread):
    """Use as a context manager. ``recoveries`` has the faults in their order."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(daemon=True)
        self._stand, self._done, self._is_second_half = stand, threading.Event(), False
        self.recoveries: list[Recovery] = []
        self.largest: dict[str, list[int]] = {}

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def half(self) -> None:
        """From now on it is the second half, which is compared with the first."""
        self._is_second_half = True

    def begins(self, kind: str) -> Recovery:
        """A fault of this kind is about to come; to be handed to ``over`` when it has."""
        return Recovery(kind, self._in_hand(), self._stand.num_in_work(self._stand.counted()), None)

    def over(self, recovery: Recovery) -> None:
        """The fault has come and gone: its recovery begins now."""
        recovery.begun = time.monotonic()
        self.recoveries.append(recovery)

    def run(self) -> None:
        next_memory = 0.0
        while not self._done.wait(POLL_SECONDS):
            self._look_at_recoveries()
            if time.monotonic() >= next_memory:
                self._look_at_memory()
                next_memory = time.monotonic() + MEMORY_INTERVAL_SECONDS

    def times(self) -> list[str]:
        """A table: each kind of fault, how many met work, and the longest recovery of those."""
        met = [each for each in self.recoveries if each.num_in_work]
        lines = [
            f"{len(met)} of {len(self.recoveries)} faults met samples in work; the longest recovery of each kind, "
            "until jobs in hand were done or handed back, and until a sample was stored, whatever else broke meanwhile:"
        ]
        for kind in sorted({each.kind for each in self.recoveries}):
            of_kind = [each for each in met if each.kind == kind]
            handed = _longest([each.handed_on for each in of_kind if each.in_hand])
            stored = _longest([each.stored for each in of_kind])
            number = sum(each.kind == kind for each in self.recoveries)
            lines.append(f"  {kind:16} {number:4d} done  {len(of_kind):4d} met work  {handed}  {stored}")
        return lines

    def memory(self) -> list[str]:
        """The largest resident size of each service's processes, in the first half of the run and in the second."""
        return [
            f"memory: {name}: at most {first >> 20} MiB, in the second half {second >> 20} MiB"
            for name, (first, second) in sorted(self.largest.items())
        ]

    def growth(self) -> list[str]:
        """What took too much, in sentences."""
        failures = []
        for name, (first, second) in self.largest.items():
            if name in SERVERS:
                continue
            if "engine" not in name and max(first, second) > MEMORY_BYTES:
                failures.append(f"{name} took {max(first, second) >> 20} MiB")
            if first and second > first * 1.1 + GROWTH_BYTES:
                failures.append(f"{name} grew from {first >> 20} MiB in the first half to {second >> 20} MiB")
        return failures

    def _look_at_recoveries(self) -> None:
        open_ones = [each for each in self.recoveries if each.handed_on is None or each.stored is None]
        counted = self._stand.counted()
        if not open_ones or not counted:
            return
        now, in_hand = time.monotonic(), self._in_hand()
        for each in open_ones:
            stored = counted.get("stored", 0)
            each.num_stored = stored if each.num_stored is None else min(each.num_stored, stored)  # emptied meanwhile
            if each.handed_on is None and not each.in_hand & in_hand:
                each.handed_on = now - each.begun
            if each.stored is None and (stored > each.num_stored or self._stand.num_in_work(counted) == 0):
                each.stored = now - each.begun

    def _in_hand(self) -> set[bytes]:
        """The executions that run now; none while Redis is away."""
        queues = ["extract", *(f"store.{node.name}" for node in self._stand.nodes)]
        with contextlib.suppress(RedisError):
            found = [self._stand.redis.zrange(f"rq:wip:{queue}", 0, -1) for queue in queues]
            return {bytes(entry) for entries in found for entry in entries}  # type: ignore[arg-type]
        return set()

    def _look_at_memory(self) -> None:
        for node in self._stand.nodes:
            for service in node.services:
                self._note(service.name, _resident_bytes(service))
        for name, process in zip(SERVERS, (self._stand.valkey.process, self._stand.seaweed.process), strict=True):
            if process is not None:
                self._note(name, _resident_bytes_of(process.pid))

    def _note(self, name: str, used: int) -> None:
        sizes = self.largest.setdefault(name, [0, 0])
        sizes[self._is_second_half] = max(sizes[self._is_second_half], used)


def _resident_bytes(service: Service) -> int:
    """Of all its processes; an engine has several."""
    return sum(_resident_bytes_of(process.pid) for process in service.family())


def _resident_bytes_of(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _longest(seconds: list[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    if len(known) < len(seconds):
        return "   never"
    return f"{max(known):6.1f} s" if known else "       -"
