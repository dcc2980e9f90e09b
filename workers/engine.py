"""The client of a node's engines: all samples of a batch in flight at once, a receipt for each."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from eaglefeed.errors import EngineGone
from eaglefeed.records import Sample

_MAX_IN_FLIGHT = 512


class EngineDied(EngineGone):
    """The engine went away, or gave no sense, while it had the samples; one of them may be to blame."""


class EngineEnded(EngineGone):
    """The engine's process is gone."""

    exit_code = 3


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the engine said of one sample.

    Attributes:
        cached_tokens: prompt tokens that SGLang took from a cache; must be 0.
        receipt: the plugin's, {} when the answer carried none.
        error: SGLang's own message for a request that it refused, "" otherwise.
    """

    sample: Sample
    rid: str
    cached_tokens: int = -1
    receipt: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class Engine:
    """One or more SGLang servers of the same model, asked in turn.

    Args:
        urls: of the replicas, ``http://127.0.0.1:30000``.
        timeout_seconds: for one request, queueing in the engine included.
    """

    def __init__(self, urls: Sequence[str], timeout_seconds: float) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        self.timeout_seconds = timeout_seconds
        self._timeout = httpx.Timeout(timeout_seconds, connect=10)
        self._next = itertools.count()

    def is_answering(self) -> bool:
        """Whether every replica's server lives; unlike ``/health`` this does not wait behind a long forward."""
        try:
            return all(httpx.get(f"{url}/model_info", timeout=self._timeout).status_code == 200 for url in self.urls)
        except httpx.HTTPError:
            return False

    def is_healthy(self) -> bool:
        """Whether every replica answers ``/health``."""
        try:
            return all(httpx.get(f"{url}/health", timeout=self._timeout).status_code == 200 for url in self.urls)
        except httpx.HTTPError:
            return False

    def ask(self, batch_id: str, samples: Sequence[Sample]) -> list[Answer]:
        """Send all samples at once and wait for all answers, in the samples' order.

        Raises:
            EngineGone: an engine does not answer, or answers with a server error.
        """
        return asyncio.run(self._ask_all(batch_id, samples))

    async def _ask_all(self, batch_id: str, samples: Sequence[Sample]) -> list[Answer]:
        limits = httpx.Limits(max_connections=_MAX_IN_FLIGHT, max_keepalive_connections=_MAX_IN_FLIGHT)
        async with httpx.AsyncClient(timeout=self._timeout, limits=limits, trust_env=False) as client:
            questions = [asyncio.create_task(self._ask_one(client, batch_id, sample)) for sample in samples]
            try:
                return await asyncio.gather(*questions)
            finally:
                for question in questions:
                    question.cancel()
                await asyncio.gather(*questions, return_exceptions=True)

    async def _ask_one(self, client: httpx.AsyncClient, batch_id: str, sample: Sample) -> Answer:
        rid = f"{batch_id}-{sample.id}-{secrets.token_hex(4)}"
        url = self.urls[next(self._next) % len(self.urls)]
        question = {
            "rid": rid,
            "input_ids": sample.token_ids.tolist(),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_hidden_states": True,
        }
        try:
            response = await client.post(f"{url}/generate", json=question)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise EngineGone(f"{url} does not answer: {type(error).__name__} {error}".rstrip()) from error
        except httpx.HTTPError as error:
            raise EngineDied(f"{url} went away: {type(error).__name__} {error}".rstrip()) from error
        return _read_answer(url, sample, rid, response)


def _read_answer(url: str, sample: Sample, rid: str, response: httpx.Response) -> Answer:
    if response.status_code == 400:
        return Answer(sample, rid, error=response.text[:2000])
    if response.status_code != 200:
        raise EngineDied(f"{url} answers {response.status_code}: {response.text[:500]}")
    meta = response.json()["meta_info"]
    finish = meta.get("finish_reason") or {}
    if finish.get("type") == "abort":
        return Answer(sample, rid, error=f"aborted: {finish.get('message', '')}")
    receipts = meta.get("eaglefeed") or [{}]
    return Answer(sample, rid, int(meta.get("cached_tokens", -1)), receipts[0])
