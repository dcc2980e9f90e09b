"""Samples longer than the run's maximum: rejected, cut at a turn, or cut hard; what is lost is counted.

Legend: ``T`` tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from config.run import DataSettings
from eaglefeed.errors import BadRow
from eaglefeed.records import LossMask, Sample, TokenIds
from producer.conversations import Content, Conversation


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A row at its full length.

    Attributes:
        token_ids, loss_mask: ``[T]``.
        turn_ends: number of tokens up to the end of each assistant turn, ascending.
        conversation: as it was rendered; None for texts and token ids, which are cut as they are.
    """

    token_ids: TokenIds
    loss_mask: LossMask
    turn_ends: list[int] = field(default_factory=list)
    conversation: Conversation | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """The sample to keep; ``how`` it was shortened and what that cost."""

    sample: Sample
    how: str = ""
    tokens_lost: int = 0


class TooLong(BadRow):
    """More tokens than the run's maximum."""

    def __init__(self, num_tokens: int, detail: str) -> None:
        super().__init__("too-long", detail)
        self.num_tokens = num_tokens


class Sampler(Protocol):
    """What renders and encodes a conversation again when turns have been dropped."""

    def sample(self, content: Content) -> Whole: ...


def fit(sampler: Sampler, whole: Whole, settings: DataSettings) -> Fitted:
    """Raises TooLong where the settings reject, or where not one turn fits."""
    num_tokens = len(whole.token_ids)
    if not num_tokens:
        raise BadRow("empty", "no token")
    if num_tokens <= settings.max_length:
        return Fitted(Sample(whole.token_ids, whole.loss_mask))
    if settings.over_length == "reject":
        raise TooLong(num_tokens, f"{num_tokens} tokens; max_length is {settings.max_length}")
    if settings.over_length == "truncate":
        kept = _first(whole, settings.max_length)
    else:
        kept = _whole_turns(sampler, whole, settings.max_length)
    return Fitted(kept, settings.over_length, num_tokens - kept.num_tokens)


def ends_of_runs(mask: LossMask) -> list[int]:
    """Where runs of supervised tokens end: the turn boundaries of a row that came tokenized."""
    padded = np.concatenate([mask, np.zeros(1, np.uint8)])
    return [int(end) for end in np.flatnonzero((padded[:-1] == 1) & (padded[1:] == 0)) + 1]


def _first(whole: Whole, num_tokens: int) -> Sample:
    return Sample(whole.token_ids[:num_tokens].copy(), whole.loss_mask[:num_tokens].copy())


def _whole_turns(sampler: Sampler, whole: Whole, max_length: int) -> Sample:
    """The most assistant turns that fit. A conversation is rendered again without the others, for templates treat a
    last turn otherwise than an earlier one."""
    num_turns = sum(end <= max_length for end in whole.turn_ends)
    if whole.conversation is None:
        if num_turns:
            return _first(whole, whole.turn_ends[num_turns - 1])
    else:
        for count in range(num_turns, 0, -1):
            shorter = sampler.sample(_first_turns(whole.conversation, count))
            if len(shorter.token_ids) <= max_length:
                return Sample(shorter.token_ids, shorter.loss_mask)
    raise TooLong(
        len(whole.token_ids), f"{len(whole.token_ids)} tokens, and the first turn alone exceeds max_length {max_length}"
    )


def _first_turns(conversation: Conversation, count: int) -> Conversation:
    answers = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    return Conversation(conversation.messages[: answers[count - 1] + 1], conversation.tools)
