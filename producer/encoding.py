"""Text to token ids, and where given characters fall among the tokens, certain or refused.

Legend: ``T`` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from eaglefeed.errors import BadRow

TAIL_TOKENS = 64
"""How far back a special token is looked for, from which the text up to a boundary is encoded again."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids ``[T]``, and for each boundary asked for the number of tokens before it (None: inside a token)."""

    token_ids: list[int]
    boundaries: dict[int, int | None]


class Encoder:
    """Encodes what a chat template rendered: nothing is added, special tokens in the text are special."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special_ids = frozenset(tokenizer.added_tokens_decoder)
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
            self._backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
        self._tail = lru_cache(4096)(self._ids)

    def ids_of_all(self, texts: list[str]) -> list[list[int]]:
        """Token ids alone, without the cost of knowing where each came from; the texts must be Unicode."""
        if self._backend is None:
            return [self._ids(text) for text in texts]
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def ids(self, text: str) -> list[int]:
        return self.ids_of_all([text])[0]

    def require_unicode(self, text: str) -> None:
        """Raises BadRow (``invalid-unicode``) for half a surrogate pair, which JSON can hold and UTF-8 cannot."""
        if text.isascii():
            return
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadRow("invalid-unicode", f"half a surrogate pair at character {error.start} of the text") from error

    def encode(self, text: str, boundaries: Sequence[int] = ()) -> Encoded:
        """Raises BadRow as ``require_unicode`` does."""
        self.require_unicode(text)
        if self._backend is None:
            return self._encode_slowly(text, boundaries)
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        return Encoded(ids, {place: self._place(encoding, ids, text, place) for place in set(boundaries)})

    def _place(self, encoding: Any, ids: list[int], text: str, place: int) -> int | None:
        if place <= 0:
            return 0
        index = self._first_from(encoding, place, len(text), len(ids))
        if index > 0 and ids[index - 1] in self.special_ids:
            return index
        return index if self._is_cut(encoding, ids, text, place, index) else None

    def _first_from(self, encoding: Any, place: int, end: int, num_tokens: int) -> int:
        """The first token at or after a character; characters that no token covers are passed over."""
        for character in range(place, end):
            index: int | None = encoding.char_to_token(character)
            if index is not None:
                return index
        return num_tokens

    def _is_cut(self, encoding: Any, ids: list[int], text: str, place: int, index: int) -> bool:
        """Whether the text before ``place`` alone gives the tokens that the whole text has there."""
        first = index - 1
        while first > 0 and ids[first] not in self.special_ids and index - first < TAIL_TOKENS:
            first -= 1
        if first <= 0 or ids[first] not in self.special_ids:
            return self._ids(text[:place]) == ids[:index]
        start: int = encoding.token_to_chars(first)[0]
        return self._tail(text[start:place]) == ids[first:index]

    def _encode_slowly(self, text: str, boundaries: Sequence[int]) -> Encoded:
        """Tokenizers without offsets (tiktoken, sentencepiece in Python): each boundary's prefix is encoded."""
        ids = self._ids(text)
        places: dict[int, int | None] = {}
        for place in set(boundaries):
            prefix = self._ids(text[:place])
            places[place] = len(prefix) if ids[: len(prefix)] == prefix else None
        return Encoded(ids, places)

    def _ids(self, text: str) -> list[int]:
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
