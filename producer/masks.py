"""Which characters of a rendered conversation the assistant wrote: from after its header to its end-of-turn token.

Three ways, from the surest to the last resort; each is checked, and a turn that none can place is refused:

1. the template's own ``{% generation %}`` markers;
2. cutting the text at the header and closing that the template was found to use, where they occur exactly once a turn
   and nowhere inside a message;
3. rendering prefixes: the conversation up to a turn, with the generation prompt, must be a prefix of the whole, and so
   must the conversation up to and with the turn. Templates that rewrite earlier turns (Qwen3 drops their thinking)
   break the second; there the turn is found by rendering the whole with a marker in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

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
_EMPTY_THINKING = re.compile(r"\s*(<think>\s*</think>\s*)?")


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
    cut = cut_at_headers(template, conversation, text)
    return text, cut if cut is not None else compare_prefixes(template, conversation, text)


def cut_at_headers(template: ChatTemplate, conversation: Conversation, text: str) -> list[Span] | None:
    """Way 2; None where it could be wrong."""
    header, closing = template.traits.header, template.traits.closing
    if not header or not closing or not template.ends_with_special(closing):
        return None
    num_turns = sum(message["role"] == "assistant" for message in conversation.messages)
    if text.count(header) != num_turns or _mention((header, closing), conversation.messages):
        return None
    spans, position = [], 0
    for _ in range(num_turns):
        start = text.find(header, position) + len(header)
        end = text.find(closing, start)
        if end < 0:
            return None
        position = end + len(closing)
        spans.append((start, position))
    return spans


def compare_prefixes(template: ChatTemplate, conversation: Conversation, text: str) -> list[Span]:
    """Way 3; raises BadRow naming the first turn that has no certain place."""
    return [
        _prefix_span(template, conversation, text, i) or _marked_span(template, conversation, text, i)
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


def require_every_turn(messages: Iterable[Message], text: str) -> None:
    """Raises BadRow where the rendering leaves a turn out, or puts one before its predecessor."""
    position = 0
    for number, message in enumerate(messages, 1):
        content = _visible(message)
        found = text.find(content, position)
        if found < 0:
            raise BadRow(
                "template-drops-turn", f"turn {number} ({message['role']}) is not in the rendered conversation"
            )
        position = found + len(content)


def _visible(message: Message) -> str:
    content = message["content"] or ""
    if message["role"] == "assistant":
        for _, closing in THINKING_MARKS:
            content = content.rpartition(closing)[2]
        if message.get("tool_calls"):
            return ""  # several templates leave the words beside a call out, as the model is trained to
    return str(content.strip())


def _whole_turn(template: ChatTemplate, text: str, span: Span) -> Span:
    """A marked span without the header, with the end-of-turn token, whatever the template's author put inside."""
    start, end = span
    header, closing = template.traits.header, template.traits.closing
    if header and text.startswith(header, start):
        start += len(header)
    if closing and text.startswith(closing, end) and not template.ends_with_special(text[start:end]):
        end += len(closing)
    return start, start + len(template.trimmed(text[start:end]))


def _prefix_span(template: ChatTemplate, conversation: Conversation, text: str, i: int) -> Span | None:
    messages, tools = conversation.messages, conversation.tools
    try:
        before = template.render(messages[:i], tools, generation_prompt=True)
        until = template.render(messages[: i + 1], tools)
    except BadRow:
        return None
    if not (text.startswith(before) and text.startswith(until) and len(until) > len(before)):
        return None
    return len(before), len(before) + len(template.trimmed(until[len(before) :]))


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
        if head.endswith(header[:length]) and template.ends_with_special(header[:length]):
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


def _mention(words: tuple[str, ...], value: Any) -> bool:
    """Whether any text inside ``value`` holds one of the words."""
    if isinstance(value, str):
        return any(word in value for word in words)
    if isinstance(value, dict):
        return any(_mention(words, part) for part in value.values())
    return isinstance(value, list) and any(_mention(words, part) for part in value)
