"""Conversations that begin alike: what a prefix cache in the engine would have swallowed, counted to the token.

Legend: ``T`` tokens of one sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eaglefeed.records import TokenIds
from producer.tokens import Prepared

MAX_HELD_TOKENS = 128 << 20
"""Tokens kept for comparison, 512 MiB; conversations after that are compared and not kept."""

SHOWN = 5


@dataclass(slots=True)
class _Node:
    """An edge of the tree with its tokens, the row that brought them, and what branches off behind them."""

    tokens: TokenIds
    first: str
    children: dict[int, _Node] = field(default_factory=dict)


class NearDuplicates:
    """A radix tree over token ids, as an engine's prefix cache keeps one; nothing is dropped because of it."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.conversations = self.tokens = self.held_tokens = 0
        self._root = _Node(np.zeros(0, np.uint32), "")
        self._shared: Counter[tuple[str, int]] = Counter()

    def add(self, row: Prepared) -> None:
        """Compare a new sample with all before it, and keep it for those after."""
        if row.sample is None:
            return
        shared, first = self._insert(row.sample.token_ids, f"{row.line} of {row.file}")
        if shared > self.threshold:
            self.conversations += 1
            self.tokens += shared
            self._shared[first, shared] += 1
            if len(self._shared) > 10_000:
                self._shared = Counter(dict(self._shared.most_common(5_000)))

    def summary(self) -> dict[str, Any]:
        top = [
            {"conversations": count, "tokens": shared, "first": first}
            for (first, shared), count in self._shared.most_common(SHOWN)
        ]
        return {
            "threshold": self.threshold,
            "conversations": self.conversations,
            "tokens": self.tokens,
            "top": top,
            "compared_with_all": self.held_tokens < MAX_HELD_TOKENS,
        }

    def _insert(self, token_ids: TokenIds, name: str) -> tuple[int, str]:
        """Length of the longest prefix shared with an earlier sample, and the row that brought it first."""
        node, depth, first = self._root, 0, ""
        while depth < len(token_ids):
            child = node.children.get(int(token_ids[depth]))
            if child is None:
                self._keep(node, token_ids[depth:], name)
                break
            same = _common(child.tokens, token_ids[depth:])
            depth, first = depth + same, child.first
            if same < len(child.tokens):
                if depth < len(token_ids):
                    child = self._split(node, child, same)
                    self._keep(child, token_ids[depth:], name)
                break
            node = child
        return depth, first

    def _split(self, parent: _Node, child: _Node, place: int) -> _Node:
        upper = _Node(child.tokens[:place], child.first, {int(child.tokens[place]): child})
        child.tokens = child.tokens[place:]
        parent.children[int(upper.tokens[0])] = upper
        return upper

    def _keep(self, node: _Node, tokens: TokenIds, name: str) -> None:
        if self.held_tokens < MAX_HELD_TOKENS:
            self.held_tokens += len(tokens)
            node.children[int(tokens[0])] = _Node(tokens.copy(), name)


def _common(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    differing = one[:length] != other[:length]
    return int(differing.argmax()) if differing.any() else length
