"""The states of a batch, as a model that is walked through whole: up to three workers, which may die between any steps.

::

    queued ──take──> taken ──begin──> extracting ──prove──> spooled ──hand over──> store job queued
      ^                │                  │                                              │ take, begin
      └── the reaper ──┴──────────────────┘ (worker died, or was taken for dead)         v
      ^                                   └─ for good ──> dead        uploaded ──create manifest──> committed
      └──────────── dumps are gone: back to extraction ──────────────────┘      ──count once──> counted
                                                                               ──forget dumps──> done

What the code does at each step is said beside it (``workers/jobs.py``, ``storage/jobs.py``, ``config/queue_worker.py``,
``config/reaper.py``). A step is what Redis, the store or the disk does at once; between two steps anything may happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

NONE, QUEUED, STARTED, DEAD, REPLACED = "none", "queued", "started", "dead", "replaced"


@dataclass(frozen=True)
class Job:
    """A job's record in Redis, and how often its id stands in the queue and in the list of taken ids.

    ``owner`` is the worker that has begun it last; only the owner of a started job ends it (``config/ending.py``).
    """

    status: str = NONE
    waiting: int = 0
    taken: int = 0
    owner: int = -1

    def ended_by(self, number: int) -> Job:
        mine = self.status == STARTED and self.owner == number
        return replace(self, status=NONE, owner=-1) if mine else self

    @property
    def is_live(self) -> bool:
        """Somebody works on it, or will: the id is queued, or the reaper finds it."""
        return (self.status == QUEUED and self.waiting + self.taken > 0) or self.status == STARTED


@dataclass(frozen=True)
class Worker:
    """``at`` is the step it has done last; ``dumps`` the extract worker whose dumps its store job names."""

    role: str
    at: str = "idle"
    dumps: int = -1


@dataclass(frozen=True)
class World:
    """All there is. ``budget``: how many crashes, false deaths, transient faults and lost disks may still come."""

    workers: tuple[Worker, ...]
    extract: Job = Job(QUEUED, 1)
    store: Job = Job()
    store_names: int = -1
    dumps: frozenset[int] = frozenset()
    manifests: int = 0
    counted: int = 0
    budget: tuple[int, int, int, int] = (0, 0, 0, 0)

    def spend(self, place: int) -> World:
        return replace(self, budget=tuple(left - (at == place) for at, left in enumerate(self.budget)))

    def move(self, number: int, at: str, **changes: object) -> World:
        worker = replace(self.workers[number], at=at)
        workers = (*self.workers[:number], worker, *self.workers[number + 1 :])
        return replace(self, **{"workers": workers, **changes})


def steps(world: World) -> Iterator[tuple[str, World]]:
    """Everything that can happen next."""
    for number, worker in enumerate(world.workers):
        yield from (extract_steps if worker.role == "extract" else store_steps)(world, number)
        if world.budget[0] and worker.at != "idle":
            yield f"{number} dies", replace(world.move(number, "idle"), budget=world.spend(0).budget)
    yield from reaper_steps(world)
    if world.budget[3] and world.dumps:
        yield "the disk loses the dumps", replace(world.spend(3), dumps=frozenset())


def extract_steps(world: World, number: int) -> Iterator[tuple[str, World]]:
    """``workers.jobs.extract_batch`` within ``QueueWorker.perform_job``."""
    job, at = world.extract, world.workers[number].at
    if at == "idle" and job.waiting:
        yield "take", world.move(number, "taken", extract=replace(job, waiting=job.waiting - 1, taken=job.taken + 1))
    if at == "taken" and not job.taken:  # the reaper thought it lost and was quicker
        yield "begin all the same", world.move(number, "begun", extract=replace(job, status=STARTED, owner=number))
    elif at == "taken" and job.status == NONE:  # its record is gone: somebody has finished it
        yield "drop", world.move(number, "idle", extract=replace(job, taken=job.taken - 1))
    elif at == "taken":
        yield (
            "begin",
            world.move(number, "begun", extract=replace(job, status=STARTED, owner=number, taken=job.taken - 1)),
        )
    if at == "begun" and world.store.status in (QUEUED, STARTED):  # is_handed_over
        yield "is handed over already", world.move(number, "handed over")
    elif at == "begun":
        yield "prove", world.move(number, "proved", dumps=world.dumps | {number})
        yield "fail for good", world.move(number, "idle", extract=replace(job, status=DEAD))
        if world.budget[2]:
            back = replace(job, status=QUEUED, waiting=job.waiting + 1)
            yield "hand back", replace(world.move(number, "idle", extract=back), budget=world.spend(2).budget)
    if at == "proved":
        store = replace(world.store, status=QUEUED, waiting=world.store.waiting + 1)
        yield "hand over", world.move(number, "handed over", store=store, store_names=number)
    if at == "handed over":
        yield "end", world.move(number, "idle", extract=job.ended_by(number))


def store_steps(world: World, number: int) -> Iterator[tuple[str, World]]:
    """``storage.jobs.store_batch`` within ``StorageWorker``."""
    job, worker = world.store, world.workers[number]
    at = worker.at
    if at == "idle" and job.waiting:
        yield "take", world.move(number, "taken", store=replace(job, waiting=job.waiting - 1, taken=job.taken + 1))
    if at == "taken" and job.status == NONE:
        yield "drop", world.move(number, "idle", store=replace(job, taken=max(0, job.taken - 1)))
    elif at == "taken":
        begun = world.move(
            number, "begun", store=replace(job, status=STARTED, owner=number, taken=max(0, job.taken - 1))
        )
        workers = list(begun.workers)
        workers[number] = replace(workers[number], dumps=world.store_names)
        yield "begin", replace(begun, workers=tuple(workers))
    if at == "begun" and world.manifests:
        yield "find the manifest", world.move(number, "committed")
    elif at == "begun" and worker.dumps in world.dumps:
        yield "upload", world.move(number, "uploaded")
    elif at == "begun":  # StorageWorker.recover: one transaction replaces one job by the other
        again = replace(world.extract, status=QUEUED, waiting=world.extract.waiting + 1)
        yield "dumps are gone", world.move(number, "replaced", extract=again, store=replace(job, status=REPLACED))
    if at == "replaced":
        yield "end", world.move(number, "idle")
    if at == "uploaded":
        yield "create the manifest", world.move(number, "committed", manifests=1)  # create-only
    if at == "committed":
        yield "count", world.move(number, "counted", counted=max(1, world.counted))  # count_once
    if at == "counted":
        yield "forget", world.move(number, "forgotten", dumps=world.dumps - {worker.dumps})
    if at == "forgotten":
        yield "end", world.move(number, "idle", store=job.ended_by(number))


def reaper_steps(world: World) -> Iterator[tuple[str, World]]:
    """``config.reaper``: what nobody holds goes back; what somebody holds, too, when he is taken for dead."""
    for role, name in (("extract", "extract"), ("store", "store")):
        job: Job = getattr(world, name)
        held = [worker.at for worker in world.workers if worker.role == role and worker.at != "idle"]
        beginning, running = held.count("taken"), len(held) - held.count("taken")
        if job.status == STARTED and (not running or world.budget[1]):
            back = replace(job, status=QUEUED, waiting=job.waiting + 1)
            spent = world if not running else world.spend(1)
            yield f"reap the {role} job", replace(spent, **{name: back})
        if job.taken > beginning or (job.taken and world.budget[1]):
            status, waiting = (job.status, job.waiting + 1) if job.status == QUEUED else (job.status, job.waiting)
            back = replace(job, status=status, taken=job.taken - 1, waiting=waiting)
            spent = world if job.taken > beginning else world.spend(1)
            yield f"reap the taken {role} job", replace(spent, **{name: back})


def state_of(world: World) -> str:
    """The batch's state, in the words of the page."""
    if world.manifests:
        return "stored"
    if world.extract.status == DEAD or world.store.status == DEAD:
        return "dead"
    if world.store.is_live:
        return "spooled"
    return {QUEUED: "queued", STARTED: "extracting"}.get(world.extract.status, "lost")


def walk(start: World) -> tuple[dict[World, list[World]], dict[World, tuple[str, World]]]:
    """Every world that can come of ``start``: what follows each, and how each was first come to."""
    following: dict[World, list[World]] = {}
    came_from: dict[World, tuple[str, World]] = {}
    waiting = deque([start])
    seen = {start}
    while waiting:
        world = waiting.popleft()
        following[world] = []
        for name, after in steps(world):
            following[world].append(after)
            if after not in seen:
                seen.add(after)
                came_from[after] = (name, world)
                waiting.append(after)
    return following, came_from


def story(world: World, came_from: dict[World, tuple[str, World]]) -> str:
    """The steps that lead to a world, for a person who has to mend the code."""
    told = [str(world)]
    while world in came_from:
        name, world = came_from[world]
        told.append(name)
    return "\n".join(reversed(told))


CREWS = {
    "one of each": ("extract", "store"),
    "two extract, one store": ("extract", "extract", "store"),
    "one extract, two store": ("extract", "store", "store"),
}
BUDGETS = {
    "three crashes": (3, 0, 0, 0),
    "a crash and a false death": (1, 1, 0, 0),
    "a crash and a transient fault": (1, 0, 1, 0),
    "a crash and a lost disk": (1, 0, 0, 1),
    "a false death and a lost disk": (0, 1, 0, 1),
    "all at once": (1, 1, 1, 1),
}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
@pytest.mark.parametrize("crew", CREWS.values(), ids=CREWS)
def test_no_order_of_steps_and_crashes_loses_or_doubles_a_batch(crew: tuple[str, ...], budget: tuple[int, ...]):
    """In every reachable world the batch is counted at most once and never before its manifest, and is not lost; and
    from every one of them it can still be stored and counted, or is a dead letter."""
    following, came_from = walk(World(tuple(Worker(role) for role in crew), budget=budget))
    for world in following:
        assert world.counted <= world.manifests <= 1, story(world, came_from)
        assert is_held(world), story(world, came_from)
    ends = {world for world in following if is_settled(world)}
    assert ends
    preceding: dict[World, list[World]] = {world: [] for world in following}
    for world, afters in following.items():
        for after in afters:
            preceding[after].append(world)
    hopeful, waiting = set(ends), deque(ends)
    while waiting:
        for before in preceding[waiting.popleft()]:
            if before not in hopeful:
                hopeful.add(before)
                waiting.append(before)
    stuck = [world for world in following if world not in hopeful]
    assert not stuck, story(stuck[0], came_from)


def is_held(world: World) -> bool:
    """Whether the batch is stored, dead, in a live job, or in the hands of a worker that can still pass it on."""
    if state_of(world) != "lost":
        return True
    return any(worker.at in ("proved", "uploaded", "committed", "begun") for worker in world.workers)


def is_settled(world: World) -> bool:
    """Stored and counted, or a dead letter (which a person may retry: it is counted then, if it was stored)."""
    return bool(world.manifests and world.counted) or world.extract.status == DEAD


def test_the_walk_sees_every_state():
    """The model is not empty: each state of a batch is reached."""
    following, _ = walk(World((Worker("extract"), Worker("store")), budget=(1, 0, 1, 1)))
    assert {"queued", "extracting", "spooled", "stored", "dead"} <= {state_of(world) for world in following}
    assert len(following) > 500


def test_the_walk_finds_a_loss():
    """A model with a fault is told from one without: counting before the manifest exists is found."""
    world = World((Worker("extract"), Worker("store", "committed")), extract=Job(), budget=(1, 0, 0, 0))
    following, _ = walk(world)
    assert any(each.counted > each.manifests for each in following)
