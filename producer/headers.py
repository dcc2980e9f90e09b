"""The short way to a loss mask: an assistant turn is what stands between the template's header and its closing token.

Certain only where the header and the closing token occur once a turn and nowhere inside a message, and where the
header's own tokens stand before the turn unchanged; ``producer/masks.py`` is the long way, and gives the same spans.

Legend: ``T`` tokens.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from eaglefeed.records import TokenIds
from producer.conversations import Conversation
from producer.encoding import Encoder
from producer.templates import ChatTemplate

TokenSpan = tuple[int, int]


class HeaderCutter:
    """Finds assistant turns by the token sequences around them."""

    def __init__(self, template: ChatTemplate, encoder: Encoder) -> None:
        self.template, self.encoder = template, encoder

    @cached_property
    def _usable(self) -> bool:
        """The header begins and the closing is a special token, so that neither can merge with a message's text."""
        traits = self.template.traits
        return (
            bool(self.template.source)
            and not self.template.marks_generation
            and bool(self._header_ids)
            and len(self._closing_ids) == 1
            and {self._header_ids[0], self._closing_ids[0]} <= self.encoder.special_ids
            and traits.closing in self.template.special_tokens
        )

    @cached_property
    def _header_ids(self) -> list[int]:
        return self.encoder.ids(self.template.traits.header)

    @cached_property
    def _closing_ids(self) -> list[int]:
        return self.encoder.ids(self.template.traits.closing)

    def fits(self, conversation: Conversation) -> bool:
        """Whether no message holds the header or the closing token as text."""
        words = (self.template.traits.header, self.template.traits.closing)
        return self._usable and not _mention(words, conversation.messages) and not _mention(words, conversation.tools)

    def is_certain(self, conversation: Conversation, text: str) -> bool:
        """Whether the rendered text has one header for each assistant turn."""
        return text.count(self.template.traits.header) == num_answers(conversation)

    def token_spans(self, ids: TokenIds, num_turns: int) -> list[TokenSpan] | None:
        """Where each turn begins and ends among ``ids`` ``[T]``; None when the header's tokens differ before one."""
        header, closing = self._header_ids, self._closing_ids[0]
        starts = [
            start + len(header)
            for start in np.flatnonzero(ids == header[0]).tolist()
            if ids[start : start + len(header)].tolist() == header
        ]
        if len(starts) != num_turns:
            return None
        closings = np.flatnonzero(ids == closing)
        ends = np.searchsorted(closings, starts)
        if num_turns and ends[-1] >= len(closings):
            return None
        return [(start, int(closings[end]) + 1) for start, end in zip(starts, ends.tolist(), strict=True)]


def num_answers(conversation: Conversation) -> int:
    return sum(message["role"] == "assistant" for message in conversation.messages)


def _mention(words: tuple[str, ...], value: Any) -> bool:
    """Whether any text inside ``value`` holds one of the words."""
    if isinstance(value, str):
        return any(word in value for word in words)
    if isinstance(value, dict):
        return any(_mention(words, part) for part in value.values())
    return isinstance(value, list) and any(_mention(words, part) for part in value)
