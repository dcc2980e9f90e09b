"""Which characters of a rendered conversation the assistant wrote: from after its header to its end-of-turn token.

Each way is checked, and a turn that none can place is refused:

1. the template's own ``{% generation %}`` markers;
2. rendering prefixes: the conversation up to a turn, with the generation prompt, must be a prefix of the whole, and so
   must the conversation up to and with the turn;
3. where a template puts something else before a turn once more turns follow (Mistral's tools): the turn's own text as
   the prefixes give it, which must be in the whole as often as there are such turns;
4. where a template rewrites earlier turns (Qwen3 drops their thinking): rendering the whole with a marker in the turn's
   place, which must leave everything around it as it was.

``producer/headers.py`` finds the same spans faster, for the templates and rows where that is certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from eaglefeed.errors import BadRow
from producer.conversations import Conversation
from producer.templates import ChatTemplate
from producer.turns import Message

Span = tuple[int, int]

MARKER = "⁂eaglefeed⁂"
THINKING_MARKS = (
    ("<think>", "</think>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
)
_EMPTY_THINKING = re.compile(r"\s*((<think>)?\s*</think>\s*)?")


def render_with_spans(template: ChatTemplate, conversation: Conversation) -> tuple[str, list[Span]]:
    """The text and one span for each assistant turn, in order; ``conversation`` has been fitted to the template.

    Raises:
        BadRow: ``prefix-mismatch`` naming the turn, ``template-drops-turn``, or ``template-refused``.
    """
    if template.marks_generation:
        text, spans = template.render_marked(conversation.messages, conversation.tools)
        require_every_turn(conversation.messages, text)
        return text, [_whole_turn(template, text, span) for span in spans]
    text = template.render(conversation.messages, conversation.tools)
    require_every_turn(conversation.messages, text)
    return text, compare_prefixes(template, conversation, text)


def compare_prefixes(template: ChatTemplate, conversation: Conversation, text: str) -> list[Span]:
    """Ways 2 to 4; raises BadRow naming the first turn that has no certain place."""
    return [
        _prefix_span(template, conversation, text, i)
        or _moved_span(template, conversation, text, i)
        or _marked_span(template, conversation, text, i)
        for i, message in enumerate(conversation.messages)
        if message["role"] == "assistant"
    ]


def spans_of_text(template: ChatTemplate, text: str) -> list[Span]:
    """The assistant's spans of a text that came formatted; the whole text for a model without a template."""
    header, closing = template.traits.header, template.traits.closing
    if not template.source:
        return [(0, len(text))]
    spans, position = [], 0
    while header and (start := text.find(header, position)) >= 0:
        start += len(header)
        end = text.find(closing, start) if closing else -1
        position = len(text) if end < 0 else end + len(closing)
        spans.append((start, position))
    return spans


def without_thinking(text: str, span: Span) -> Span:
    """The span from after its thinking; as it is where it holds none, or where the thinking is never closed."""
    turn = text[span[0] : span[1]]
    for opening, closing in THINKING_MARKS:
        end = turn.find(closing)
        opened = turn.find(opening)
        if end >= 0 and (opened < 0 or not turn[:opened].strip()):
            after = turn[end + len(closing) :]
            return span[1] - len(after.lstrip()), span[1]
    return span


def require_every_turn(messages: Sequence[Message], text: str) -> None:
    """Raises BadRow where the rendering leaves a turn out, puts one before its predecessor, or drops the last
    answer's thinking. Templates may put system texts and tool results elsewhere, or show them as JSON."""
    position = 0
    for number, message in enumerate(messages, 1):
        content = _visible(message)
        in_order = message["role"] in ("user", "assistant")
        found = text.find(content, position if in_order else 0)
        if found < 0 and (in_order or json.dumps(content, ensure_ascii=False)[1:-1] not in text):
            raise BadRow(
                "template-drops-turn", f"turn {number} ({message['role']}) is not in the rendered conversation"
            )
        if in_order:
            position = found + len(content)


def require_thinking(messages: Sequence[Message], text: str) -> None:
    """Raises BadRow where the last message thinks and its thinking is not in the rendering."""
    thinking = thinking_of(messages[-1])
    if thinking and thinking not in text:
        raise BadRow(
            "template-drops-thinking",
            f"the thinking of turn {len(messages)} is not in the rendered conversation; "
            "data.thinking = false takes such rows without it",
        )


def thinking_of(message: Message) -> str:
    """An assistant message's thinking, from its own field or between marks in its content."""
    if message["role"] != "assistant":
        return ""
    if message.get("reasoning_content"):
        return str(message["reasoning_content"]).strip()
    for opening, closing in THINKING_MARKS:
        before, found, _ = (message["content"] or "").partition(closing)
        if found:
            return str(before.rpartition(opening)[2]).strip()
    return ""


def _visible(message: Message) -> str:
    if message.get("tool_calls"):
        return ""  # several templates leave the words beside a call out, as the model was trained
    content = message["content"] or ""
    if message["role"] == "assistant":
        for _, closing in THINKING_MARKS:
            content = content.rpartition(closing)[2]
    return str(content.strip())


def _whole_turn(template: ChatTemplate, text: str, span: Span) -> Span:
    """A marked span without the header, with the end-of-turn token, whatever the template's author put inside."""
    start, end = span
    header, closing = template.traits.header, template.traits.closing
    if header and text.startswith(header, start):
        start += len(header)
    if closing and text.startswith(closing, end) and not template.special_at_end(text[start:end]):
        end += len(closing)
    return start, start + len(template.trimmed(text[start:end]))


def _prefix_span(template: ChatTemplate, conversation: Conversation, text: str, i: int) -> Span | None:
    before, turn = _prefix_and_turn(template, conversation, i)
    if not turn or not text.startswith(before + turn):
        return None
    return len(before), len(before) + len(template.trimmed(turn))


def _prefix_and_turn(template: ChatTemplate, conversation: Conversation, i: int) -> tuple[str, str]:
    """The conversation up to a turn with the generation prompt, and what the turn adds to it; "" where it adds none."""
    messages, tools = conversation.messages, conversation.tools
    try:
        before = template.render(messages[:i], tools, generation_prompt=True)
        until = template.render(messages[: i + 1], tools)
    except BadRow:
        return "", ""
    return before, until[len(before) :] if until.startswith(before) else ""


def _moved_span(template: ChatTemplate, conversation: Conversation, text: str, i: int) -> Span | None:
    answers = [j for j, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    anchors = {j: _anchor(template, *_prefix_and_turn(template, conversation, j)) for j in answers}
    mark, turn = anchors[i]
    if not mark or text.count(mark + turn) != list(anchors.values()).count(anchors[i]):
        return None
    position = 0
    for _ in range([anchors[j] for j in answers if j < i].count(anchors[i]) + 1):
        start = text.find(mark + turn, position) + len(mark)
        position = start + len(turn)
    return start, position


def _anchor(template: ChatTemplate, before: str, turn: str) -> tuple[str, str]:
    """The special token that a turn stands behind, and the turn; "" where there is none or it ends in none."""
    turn = template.trimmed(turn)
    mark = template.special_at_end(before)
    return (mark, turn) if mark and template.special_at_end(turn) else ("", "")


def _marked_span(template: ChatTemplate, conversation: Conversation, text: str, i: int) -> Span:
    """The turn's span, from the whole conversation rendered with a marker in the turn's place."""
    messages, tools = conversation.messages, conversation.tools
    marked = {key: value for key, value in messages[i].items() if key != "reasoning_content"} | {"content": MARKER}
    try:
        other = template.render([*messages[:i], marked, *messages[i + 1 :]], tools)
        until = template.render([*messages[:i], marked], tools)
    except BadRow as error:
        raise _mismatch(i, error.detail) from error
    if other.count(MARKER) != 1 or until.count(MARKER) != 1:
        raise _mismatch(i, "the template shows its content not exactly once")
    head, _, tail = other.partition(MARKER)
    start = _after_header(template, conversation, head, i)
    closing = template.trimmed(until.partition(MARKER)[2])
    if not (text.startswith(head[:start]) and text.endswith(tail) and tail.startswith(closing)):
        raise _mismatch(i, "the conversation around it is rendered differently with another answer in its place")
    end = len(text) - len(tail) + len(closing)
    if end < start:
        raise _mismatch(i, "its end is before its beginning")
    return start, end


def _after_header(template: ChatTemplate, conversation: Conversation, head: str, i: int) -> int:
    """Where the header ends in ``head``, the text up to a turn's content; an empty thinking block may follow it."""
    header = _header_of_turn(template, conversation, i)
    if not header:
        return len(head)
    found = head.rfind(header)
    if found >= 0 and _EMPTY_THINKING.fullmatch(head, found + len(header)):
        return found + len(header)
    # A generation prompt may open a thinking block (DeepSeek-R1) that finished turns do not have.
    for length in range(len(header) - 1, 0, -1):
        if head.endswith(header[:length]) and template.special_at_end(header[:length]):
            return len(head)
    raise _mismatch(i, f"no assistant header {header!r} stands before it")


def _header_of_turn(template: ChatTemplate, conversation: Conversation, i: int) -> str:
    messages, tools = conversation.messages, conversation.tools
    try:
        text, prompt = (
            template.render(messages[:i], tools),
            template.render(messages[:i], tools, generation_prompt=True),
        )
    except BadRow:
        return template.traits.header
    return prompt.removeprefix(text) if prompt.startswith(text) else template.traits.header


def _mismatch(i: int, why: str) -> BadRow:
    return BadRow("prefix-mismatch", f"turn {i + 1}: the conversation up to it is not a prefix of the whole; {why}")
