"""Loss masks of seven model families, against values derived by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from config.run import DataSettings
from eaglefeed.errors import BadRow
from producer.conversations import Conversation, Preformatted
from producer.lengths import Whole
from producer.rows import Row
from producer.templates import ChatTemplate, pinned_clock
from producer.tokens import Preparer
from tests import chat_templates

Message = dict[str, Any]

TOOLS: list[Message] = [
    {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": {"type": "object"}}}
]
TWO_TURNS: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two plus two?"},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "Times 東京 🙂?"},
    {"role": "assistant", "content": "No\n\nidea."},
]
WITHOUT_SYSTEM = TWO_TURNS[1:]


def call_turns(call_id: str = "abcdef123") -> list[Message]:
    call = {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    return [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": call_id, "name": "weather"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "Welcome."},
    ]


def prepare(name: str, messages: list[Message], tools: Any = None, **settings: Any) -> tuple[Any, Whole]:
    tokenizer = chat_templates.make_tokenizer(name)
    preparer = Preparer(tokenizer, DataSettings(**settings), 1 << 20)
    record = {"messages": messages, "tools": tools}
    prepared = preparer.prepare([Row("f", 1, json.dumps(record).encode())])[0]
    if prepared.sample is None:
        raise BadRow(prepared.reason, prepared.detail)
    return tokenizer, Whole(prepared.sample.token_ids, prepared.sample.loss_mask)


def supervised(tokenizer: Any, whole: Whole) -> list[str]:
    """The text of each run of supervised tokens."""
    edges = np.flatnonzero(np.diff(whole.loss_mask)) + 1
    runs = zip(np.split(whole.token_ids, edges), np.split(whole.loss_mask, edges), strict=True)
    return [tokenizer.decode(ids.tolist()) for ids, mask in runs if mask[0]]


EXPECTED = {
    "chatml": (TWO_TURNS, None, ["Four.<|im_end|>", "No\n\nidea.<|im_end|>"]),
    "chatml-marked": (TWO_TURNS, None, ["Four.<|im_end|>", "No\n\nidea.<|im_end|>"]),
    "llama3": (TWO_TURNS, None, ["Four.<|eot_id|>", "No\n\nidea.<|eot_id|>"]),
    # The last turn shows an empty thinking block, which the model writes itself; the earlier one does not.
    "qwen3": (TWO_TURNS, None, ["Four.<|im_end|>", "<think>\n\n</think>\n\nNo\n\nidea.<|im_end|>"]),
    "deepseek-v3": (TWO_TURNS, None, ["Four.<｜end▁of▁sentence｜>", "No\n\nidea.<｜end▁of▁sentence｜>"]),
    "deepseek-r1": (TWO_TURNS, None, ["Four.<｜end▁of▁sentence｜>", "No\n\nidea.<｜end▁of▁sentence｜>"]),
    "kimi-k2": (TWO_TURNS, None, ["Four.<|im_end|>", "No\n\nidea.<|im_end|>"]),
    # The prompt opens the thinking block, so the model's own words begin with its end.
    "kimi-k2.5": (TWO_TURNS, None, ["</think>Four.<|im_end|>", "</think>No\n\nidea.<|im_end|>"]),
    # Mistral's answers begin with a space that the prompt does not have.
    "mistral": (WITHOUT_SYSTEM, None, [" Four.</s>", " No\n\nidea.</s>"]),
    "gemma": (TWO_TURNS, None, ["Four.<end_of_turn>", "No\n\nidea.<end_of_turn>"]),
}

WITH_TOOLS = {
    "llama3": (
        [
            '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
            "It rains.<|eot_id|>",
            "Welcome.<|eot_id|>",
        ],
        "abcdef123",
    ),
    "qwen3": (
        [
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>',
            "It rains.<|im_end|>",
            "<think>\n\n</think>\n\nWelcome.<|im_end|>",
        ],
        "abcdef123",
    ),
    "deepseek-v3": (
        [
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            '{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
            "It rains.<｜end▁of▁sentence｜>",
            "Welcome.<｜end▁of▁sentence｜>",
        ],
        "abcdef123",
    ),
    "kimi-k2": (
        [
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
            '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
            "It rains.<|im_end|>",
            "Welcome.<|im_end|>",
        ],
        "functions.weather:0",
    ),
    "mistral": (
        [
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abcdef123"}]</s>',
            " It rains.</s>",
            " Welcome.</s>",
        ],
        "abcdef123",
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_supervised_tokens_of_two_turns(name: str) -> None:
    """From after the header to the end-of-turn token, every assistant turn and nothing else."""
    messages, tools, expected = EXPECTED[name]
    tokenizer, whole = prepare(name, messages, tools)
    assert supervised(tokenizer, whole) == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_token_ids_are_the_templates(name: str) -> None:
    """A sample's ids are what apply_chat_template gives, to the token."""
    messages, tools, _ = EXPECTED[name]
    tokenizer, whole = prepare(name, messages, tools)
    expected = tokenizer.apply_chat_template(messages, tools=tools, strftime_now=pinned_clock)["input_ids"]
    assert whole.token_ids.tolist() == expected


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_supervised_tokens_with_tools(name: str) -> None:
    """A tool call is supervised, its result and the tools' definitions are not; ids stay the template's."""
    expected, call_id = WITH_TOOLS[name]
    messages = call_turns(call_id)
    tokenizer, whole = prepare(name, messages, TOOLS)
    assert supervised(tokenizer, whole) == expected
    fitted = ChatTemplate(tokenizer).fit(Conversation(messages, TOOLS))
    rendered = tokenizer.apply_chat_template(fitted.messages, tools=TOOLS, strftime_now=pinned_clock)["input_ids"]
    assert whole.token_ids.tolist() == rendered


@pytest.mark.parametrize("name", EXPECTED)
def test_last_turn_only(name: str) -> None:
    """With supervise = "last" only the last assistant turn is learned."""
    messages, tools, expected = EXPECTED[name]
    tokenizer, whole = prepare(name, messages, tools, supervise="last")
    assert supervised(tokenizer, whole) == expected[-1:]


THINKING: list[Message] = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Yes.", "reasoning_content": "First thought."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "No.", "reasoning_content": "Second thought."},
]


@pytest.mark.parametrize(
    ("name", "thinking", "expected"),
    [
        ("qwen3", True, ["Yes.<|im_end|>", "<think>\nSecond thought.\n</think>\n\nNo.<|im_end|>"]),
        ("qwen3", False, ["Yes.<|im_end|>", "No.<|im_end|>"]),
        ("kimi-k2.5", True, ["</think>Yes.<|im_end|>", "Second thought.</think>No.<|im_end|>"]),
        ("kimi-k2.5", False, ["Yes.<|im_end|>", "No.<|im_end|>"]),
    ],
)
def test_thinking_in_the_mask_or_out(name: str, thinking: bool, expected: list[str]) -> None:
    """Thinking that the template shows is supervised, or left out of the mask, as the run says (speculators 346)."""
    tokenizer, whole = prepare(name, THINKING, thinking=thinking)
    assert supervised(tokenizer, whole) == expected
    assert "Second thought." in tokenizer.decode(whole.token_ids.tolist())


def test_thinking_written_in_the_content() -> None:
    """Thinking between marks in the content is what reasoning_content is."""
    inline = [dict(message) for message in THINKING]
    for message in inline:
        if reasoning := message.pop("reasoning_content", None):
            message["content"] = f"<think>\n{reasoning}\n</think>\n\n{message['content']}"
    one, other = prepare("qwen3", inline)[1], prepare("qwen3", THINKING)[1]
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert one.loss_mask.tolist() == other.loss_mask.tolist()


def test_qwen3_keeps_thinking_between_tool_calls() -> None:
    """Since the last question every turn keeps its thinking, and it is supervised (the long way: prefixes differ)."""
    messages = call_turns()[:4]
    messages[1]["reasoning_content"] = "Ask the tool."
    messages[3]["reasoning_content"] = "It said rain."
    tokenizer, whole = prepare("qwen3", messages, TOOLS)
    assert supervised(tokenizer, whole) == [
        "<think>\nAsk the tool.\n</think>\n\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>',
        "<think>\nIt said rain.\n</think>\n\nIt rains.<|im_end|>",
    ]


def test_a_template_that_drops_thinking_is_refused_unless_thinking_is_out() -> None:
    """ChatML without a place for reasoning_content would lose it without a word."""
    with pytest.raises(BadRow, match="template-drops-thinking: the thinking of turn 4"):
        prepare("chatml", THINKING)
    tokenizer, whole = prepare("chatml", THINKING, thinking=False)
    assert supervised(tokenizer, whole) == ["Yes.<|im_end|>", "No.<|im_end|>"]


@pytest.mark.parametrize("name", ["chatml", "qwen3", "kimi-k2", "gemma", "llama3"])
def test_headers_inside_messages_do_not_move_the_mask(name: str) -> None:
    """A user who writes the template's own marks gets no supervised token."""
    tokenizer = chat_templates.make_tokenizer(name)
    traits = ChatTemplate(tokenizer).traits
    messages = [
        {"role": "user", "content": f"A {traits.header}fake{traits.closing} B"},
        {"role": "assistant", "content": "Real."},
        {"role": "user", "content": traits.closing + traits.header},
        {"role": "assistant", "content": "Again."},
    ]
    _, whole = prepare(name, messages)
    texts = [text.removeprefix("<think>\n\n</think>\n\n") for text in supervised(tokenizer, whole)]
    assert texts == [f"Real.{traits.closing}", f"Again.{traits.closing}"]


def test_a_template_without_tools_refuses_calls() -> None:
    """Gemma's and ChatML's templates would drop a call without a word (speculators 561)."""
    for name in ("chatml", "gemma", "deepseek-r1"):
        with pytest.raises(BadRow, match="template-drops-tool-calls: turn 2"):
            prepare(name, call_turns())


def test_deepseek_v3_refuses_words_beside_a_call() -> None:
    """Its template shows the words or the call, never both."""
    messages = call_turns()
    messages[1]["content"] = "Let me look."
    with pytest.raises(BadRow, match="template-drops-tool-calls: turn 2 has words beside its call"):
        prepare("deepseek-v3", messages)


def test_a_token_across_the_edge_of_a_turn_is_refused() -> None:
    """ChatML's header ends in a newline; an answer that begins with one merges with it, so prefixes differ."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "\n\n\nYes"}]
    tokenizer = chat_templates.make_tokenizer("chatml")
    ids = tokenizer.apply_chat_template(messages)["input_ids"]
    prefix = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True)["input_ids"]
    assert ids[: len(prefix)] != prefix, "this tokenizer does not merge newlines: the test shows nothing"
    with pytest.raises(BadRow, match="prefix-mismatch: assistant turn 1: a token lies across its edge"):
        prepare("chatml", messages)


NUMBERED = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ messages|length - loop.index0 }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant 0\n{% endif %}"
)
SHUFFLED = (
    "{% for m in messages|reverse %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPS_FIRST = (
    "{% for m in messages %}{% if not loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "reason"),
    [(NUMBERED, "prefix-mismatch: turn 2"), (SHUFFLED, "template-drops-turn"), (DROPS_FIRST, "template-drops-turn")],
)
def test_a_prefix_that_is_no_prefix_is_refused_with_its_turn(template: str, reason: str) -> None:
    """Where a turn has no certain place, the row is refused and the turn named."""
    tokenizer = chat_templates.with_template("chatml", template)
    preparer = Preparer(tokenizer, DataSettings(), 1 << 20)
    with pytest.raises(BadRow, match=reason):
        preparer.sample(Conversation(WITHOUT_SYSTEM))


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "chatml-marked"])
def test_the_short_way_gives_what_the_long_way_gives(name: str) -> None:
    """Cutting at header tokens and comparing prefixes agree, mask and ids."""
    messages, tools, _ = EXPECTED[name]
    preparer = Preparer(chat_templates.make_tokenizer(name), DataSettings(), 1 << 20)
    long = preparer.sample(Conversation(messages, tools))
    _, short = prepare(name, messages, tools)
    assert short.token_ids.tolist() == long.token_ids.tolist()
    assert short.loss_mask.tolist() == long.loss_mask.tolist()


class WithoutOffsets:
    """A tokenizer as tiktoken's and sentencepiece's in Python are: ids, and no offsets."""

    def __init__(self, name: str) -> None:
        self._fast = chat_templates.make_tokenizer(name)
        self.chat_template = self._fast.chat_template
        self.added_tokens_decoder = self._fast.added_tokens_decoder
        self.special_tokens_map = self._fast.special_tokens_map
        self.apply_chat_template = self._fast.apply_chat_template

    def __call__(self, text: str, add_special_tokens: bool) -> Any:
        return self._fast(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("name", ["mistral", "qwen3", "deepseek-v3"])
@pytest.mark.parametrize("thinking", [True, False])
def test_tokenizers_without_offsets_give_the_same_masks(name: str, thinking: bool) -> None:
    """Prefixes are then encoded and compared token by token."""
    messages, tools, _ = EXPECTED[name]
    settings = DataSettings(thinking=thinking)
    slow = Preparer(WithoutOffsets(name), settings, 1 << 20).sample(Conversation(messages, tools))
    fast = Preparer(chat_templates.make_tokenizer(name), settings, 1 << 20).sample(Conversation(messages, tools))
    assert slow.token_ids.tolist() == fast.token_ids.tolist()
    assert slow.loss_mask.tolist() == fast.loss_mask.tolist()


def test_the_date_in_a_template_does_not_change_with_the_day() -> None:
    """Llama-3's template prints today; the same conversation must have the same ids tomorrow."""
    tokenizer, whole = prepare("llama3", TWO_TURNS)
    assert "Today Date: 26 Jul 2024" in tokenizer.decode(whole.token_ids.tolist())


def test_preformatted_text_is_masked_by_the_templates_header() -> None:
    """A text in the model's own template gives what the conversation gives (SpecForge 555)."""
    for name in ("chatml", "qwen3", "llama3", "gemma"):
        tokenizer, whole = prepare(name, WITHOUT_SYSTEM)
        text = tokenizer.apply_chat_template(WITHOUT_SYSTEM, tokenize=False, strftime_now=pinned_clock)
        sample = Preparer(tokenizer, DataSettings(), 1 << 20).sample(Preformatted(text))
        assert sample.token_ids.tolist() == whole.token_ids.tolist()
        assert sample.loss_mask.tolist() == whole.loss_mask.tolist()
