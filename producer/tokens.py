"""A row becomes a sample: shape, template, token ids, loss mask, length.

Legend: ``T`` tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from config.run import DataSettings
from eaglefeed.errors import BadRow
from eaglefeed.records import LossMask, Sample, TokenIds
from producer import conversations, lengths, masks
from producer.conversations import Content, Conversation, Preformatted, Tokenized
from producer.encoding import Encoder
from producer.headers import HeaderCutter, num_answers
from producer.rows import Row, row_id
from producer.templates import ChatTemplate

ROW_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one row became: a sample, or the reason why not.

    Attributes:
        tokens_lost: cut off by truncation, or all of a row rejected for its length.
        cut: ``truncate_turn`` or ``truncate`` where the sample was shortened.
        tools_left_out: the row has tool definitions and the template (DeepSeek-V3's, for one) does not show them.
    """

    file: str
    line: int
    row_id: str
    shape: str
    sample: Sample | None = None
    reason: str = ""
    detail: str = ""
    tokens_lost: int = 0
    cut: str = ""
    tools_left_out: bool = False


@dataclass(slots=True)
class _Draft:
    """A row on its way: refused, whole, or a text whose token ids are still to come."""

    row: Row
    row_id: str = ""
    shape: str = ""
    problem: BadRow | None = None
    whole: lengths.Whole | None = None
    conversation: Conversation | None = None
    text: str = ""


class Preparer:
    """Rows to samples with one tokenizer and one set of settings; one of these lives in each process."""

    def __init__(self, tokenizer: Any, settings: DataSettings, vocab_size: int) -> None:
        self.settings = settings
        self.vocab_size = vocab_size
        self.template = ChatTemplate(tokenizer)
        self.encoder = Encoder(tokenizer)
        self._cutter = HeaderCutter(self.template, self.encoder)

    def prepare(self, rows: Sequence[Row]) -> list[Prepared]:
        """Read, render, encode, mask, fit: each row's whole way. Damage of any kind becomes a reason.

        Texts are encoded together: in turns with the rendering it costs a fifth more.
        """
        drafts = [self._draft(row) for row in rows]
        ids = iter(self.encoder.ids_of_all([draft.text for draft in drafts if draft.text]))
        return [self._finish(draft, next(ids) if draft.text else []) for draft in drafts]

    def _draft(self, row: Row) -> _Draft:
        draft = _Draft(row)
        try:
            record = conversations.parse(row)
            draft.row_id = row_id(record)
            shape = self.settings.shape
            draft.shape = shape if shape != "auto" else conversations.find_shape(record)
            content = conversations.read(record, draft.shape)
            if isinstance(content, Conversation):
                draft.conversation = content = self.template.fit(content)
                draft.text = self._certain_text(content)
            if not draft.text:
                draft.whole = self.sample(content)
        except BadRow as problem:
            draft.problem = problem
        except ROW_FAULTS as error:  # one strange row must not end the run; it is reported as what it is
            draft.problem = BadRow("unforeseen", f"{type(error).__name__}: {error}"[:300])
        return draft

    def _finish(self, draft: _Draft, ids: list[int]) -> Prepared:
        row, name, shape = draft.row, draft.row_id, draft.shape
        try:
            if draft.problem:
                raise draft.problem
            whole = draft.whole or self._cut_at_headers(draft.conversation, ids)
            cut = lengths.fit(self, whole, self.settings)
            self._require_usable(cut.sample)
        except BadRow as problem:
            lost = problem.num_tokens if isinstance(problem, lengths.TooLong) else 0
            return Prepared(row.file, row.line, name, shape, None, problem.reason, problem.detail, lost)
        left_out = bool(draft.conversation and draft.conversation.tools) and not self.template.traits.takes_tools
        return Prepared(row.file, row.line, name, shape, cut.sample, "", "", cut.tokens_lost, cut.how, left_out)

    def _certain_text(self, conversation: Conversation) -> str:
        """The rendered text where its turns can be found among the token ids alone; "" where they may not."""
        if not self.settings.thinking or not self._cutter.fits(conversation):
            return ""
        text = self.template.render(conversation.messages, conversation.tools)
        masks.require_every_turn(conversation.messages, text)
        masks.require_thinking(conversation.messages, text)
        self.encoder.require_unicode(text)
        return text if self._cutter.is_certain(conversation, text) else ""

    def _cut_at_headers(self, conversation: Conversation | None, ids: list[int]) -> lengths.Whole:
        if conversation is None:
            raise ValueError("token ids without their conversation")
        token_ids = np.asarray(ids, np.uint32)
        spans = self._cutter.token_spans(token_ids, num_answers(conversation))
        if spans is None:
            return self._by_spans(conversation)
        mask = np.zeros(len(ids), np.uint8)
        for start, end in spans if self.settings.supervise == "all" else spans[-1:]:
            mask[start:end] = 1
        return lengths.Whole(token_ids, mask, [end for _, end in spans], conversation)

    def sample(self, content: Content) -> lengths.Whole:
        """The row's tokens and mask at their full length; raises BadRow."""
        if isinstance(content, Tokenized):
            return self._check_ids(content)
        if isinstance(content, Preformatted):
            spans = masks.spans_of_text(self.template, content.text)
            if not spans:
                header = self.template.traits.header
                raise BadRow("no-supervised-tokens", f"the text holds no assistant header {header!r} of the template")
            return self._encode(content.text, spans, None)
        return self._by_spans(self.template.fit(content))

    def _by_spans(self, conversation: Conversation) -> lengths.Whole:
        text, spans = masks.render_with_spans(self.template, conversation)
        if self.settings.thinking:
            masks.require_thinking(conversation.messages, text)
        return self._encode(text, spans, conversation)

    def _encode(self, text: str, spans: list[masks.Span], conversation: Conversation | None) -> lengths.Whole:
        supervised = spans if self.settings.supervise == "all" else spans[-1:]
        inner = {span: self._inner_starts(text, span) for span in supervised}
        places = [place for span in spans for place in span] + [place for starts in inner.values() for place in starts]
        encoded = self.encoder.encode(text, places)
        mask = np.zeros(len(encoded.token_ids), np.uint8)
        ends = []
        for number, span in enumerate(spans, 1):
            start, end = (encoded.boundaries[place] for place in span)
            if start is None or end is None:
                raise BadRow("prefix-mismatch", _straddling(number, text, span[0] if start is None else span[1]))
            ends.append(end)
            if span in inner:
                certain = [encoded.boundaries[place] for place in inner[span] if encoded.boundaries[place] is not None]
                mask[certain[0] if certain else end : end] = 1
        return lengths.Whole(np.asarray(encoded.token_ids, np.uint32), mask, ends, conversation)

    def _inner_starts(self, text: str, span: masks.Span) -> tuple[int, ...]:
        """Where supervision may begin in a turn, the best place first: after its thinking and the space behind it."""
        if self.settings.thinking:
            return (span[0],)
        start = masks.without_thinking(text, span)[0]
        return start, span[0] + len(text[span[0] : start].rstrip())

    def _check_ids(self, content: Tokenized) -> lengths.Whole:
        low, high = min(content.token_ids), max(content.token_ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise BadRow("out-of-vocabulary", f"token id {wrong}; the vocabulary is 0 to {self.vocab_size - 1}")
        ids: TokenIds = np.asarray(content.token_ids, np.uint32)
        mask: LossMask = np.asarray(content.loss_mask, np.uint8)
        return lengths.Whole(ids, mask, lengths.ends_of_runs(mask), None)

    def _require_usable(self, sample: Sample) -> None:
        if not sample.num_supervised_tokens:
            raise BadRow("no-supervised-tokens", f"none of {sample.num_tokens} tokens is supervised")
        highest = int(sample.token_ids.max())
        if highest >= self.vocab_size:
            raise BadRow(
                "out-of-vocabulary", f"the tokenizer gave id {highest}; the model has 0 to {self.vocab_size - 1}"
            )


def _straddling(number: int, text: str, place: int) -> str:
    around = text[max(place - 12, 0) : place + 12]
    return f"assistant turn {number}: a token lies across its edge, near {around!r}, so its prefix has other tokens"
