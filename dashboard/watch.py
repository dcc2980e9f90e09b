"""The one poll that all viewers share: Redis is asked once, however many pages are open."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import RedisError

from dashboard.dead_letters import DeadLetter, list_dead
from dashboard.depths import record_depths
from dashboard.figures import Numbers
from dashboard.reading import Reader

POLL_SECONDS = 2.0
IDLE_POLL_SECONDS = 20.0
VIEWED_SECONDS = 15.0
"""Polls are frequent while a page has asked within this time."""

DEAD_LETTERS_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows: the last numbers that could be read, and what is wrong with Redis now."""

    numbers: Numbers | None = None
    dead: tuple[DeadLetter, ...] = ()
    error: str = ""


class Watch:
    """Polls in the background; ``view`` is the last outcome and costs nothing to read."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._reader = Reader(redis)
        self._view = View()
        self._viewed_at = self._dead_at = 0.0
        self._reading = asyncio.Lock()

    def view(self) -> View:
        """The last outcome, for a viewer: the next polls come quickly."""
        self._viewed_at = time.monotonic()
        return self._view

    async def poll(self, max_age_seconds: float = 0.0) -> View:
        """Read now, unless what is there is younger; a failure keeps the old numbers and says so."""
        async with self._reading:
            numbers = self._view.numbers
            if numbers is None or self._view.error or time.time() - numbers.taken_at >= max_age_seconds:
                self._view = await asyncio.to_thread(self._read)
        return self._view

    async def run(self) -> None:
        """Poll until cancelled, seldom when nobody looks (the depths are sampled each minute all the same)."""
        while True:
            await self.poll()
            busy = time.monotonic() - self._viewed_at < VIEWED_SECONDS
            waited = 0.0
            while waited < (POLL_SECONDS if busy else IDLE_POLL_SECONDS):
                await asyncio.sleep(0.5)
                waited += 0.5
                busy = busy or time.monotonic() - self._viewed_at < VIEWED_SECONDS

    def look_again(self) -> None:
        """Dead letters are read again with the next poll."""
        self._dead_at = 0.0

    def _read(self) -> View:
        try:
            numbers = self._reader.read()
            record_depths(self.redis, numbers)
            return View(numbers, self._read_dead(numbers))
        except RedisError as error:
            log.warning("Redis does not answer: %s", error)
            return View(self._view.numbers, self._view.dead, f"Redis does not answer ({type(error).__name__})")

    def _read_dead(self, numbers: Numbers) -> tuple[DeadLetter, ...]:
        if not numbers.dead:
            return ()
        if time.monotonic() - self._dead_at < DEAD_LETTERS_SECONDS:
            return self._view.dead
        self._dead_at = time.monotonic()
        return list_dead(self.redis, [queue.name for queue in numbers.queues if queue.dead])
