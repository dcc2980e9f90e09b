"""A tokenizer and its chat template: rendering, and what the template was found to do when it was tried.

Dates: a template that prints today's date would give the same conversation other token ids every day. The clock that
templates see is therefore fixed (``PINNED_DAY``, the day Llama-3's own template falls back to).
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from config.native_exit import keep_native_data
from eaglefeed.errors import BadRow, UsageError
from producer.conversations import Conversation
from producer.turns import Message

PINNED_DAY = datetime.datetime(2024, 7, 26)
PROBE_USER, PROBE_ANSWER, PROBE_TOOL = "Zwölf Boxkämpfer?", "Jagdfliegerbox", "eaglefeed_probe"
PROBE_CALL = "probe0001"
"""Nine characters: Mistral's templates refuse other ids."""

_ANSWER: Message = {"role": "assistant", "content": PROBE_ANSWER}
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def pinned_clock(form: str) -> str:
    return PINNED_DAY.strftime(form)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a template does, found by rendering small conversations.

    Attributes:
        header: what the generation prompt adds, ``<|im_start|>assistant\\n``; "" where it adds nothing.
        closing: from the end of an answer to the end of its last special token, ``<|im_end|>``; "" if there is none.
        takes_tool_calls: whether a call's arguments show up in the rendering.
        takes_tools: whether tool definitions show up in the rendering.
        arguments_as_text: whether arguments must be JSON texts instead of objects.
        calls_without_content: whether a call shows up only where the content is None (DeepSeek-V3).
        takes_developer: whether the role ``developer`` is known.
    """

    header: str
    closing: str
    takes_tool_calls: bool
    takes_tools: bool
    arguments_as_text: bool
    calls_without_content: bool
    takes_developer: bool


class ChatTemplate:
    """The template of one tokenizer; without one, ``source`` is "" and only texts and token ids can be taken."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        template = getattr(tokenizer, "chat_template", None) or ""
        self.source = template if isinstance(template, str) else "\n".join(template.values())
        # Passed on only where it is asked for: some tokenizers bring an apply_chat_template of their own.
        self._clock = {"strftime_now": pinned_clock} if "strftime_now" in self.source else {}
        self.marks_generation = bool(_GENERATION.search(self.source))
        self.special_tokens = frozenset(map(str, tokenizer.added_tokens_decoder.values()))
        self._special_lengths = sorted({len(token) for token in self.special_tokens if token}, reverse=True)

    def render(self, messages: list[Message], tools: Any = None, generation_prompt: bool = False) -> str:
        """The conversation as text; raises BadRow (``template-refused``) with the template's own words."""
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **self._clock,
            )
        except Exception as error:  # templates raise jinja2's, TypeError, KeyError, ... and their own
            raise BadRow("template-refused", f"{type(error).__name__}: {error}"[:300]) from error
        return str(text)

    def render_marked(self, messages: list[Message], tools: Any = None) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the character spans between the template's generation markers."""
        from transformers.utils.chat_template_utils import render_jinja_template

        variables = {**self.tokenizer.special_tokens_map, **self._clock}
        try:
            texts, spans = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=self.tokenizer.get_chat_template(None, tools),
                return_assistant_tokens_mask=True,
                **variables,
            )
        except Exception as error:  # as in render
            raise BadRow("template-refused", f"{type(error).__name__}: {error}"[:300]) from error
        return texts[0], [(start, end) for start, end in spans[0] if end > start]

    def fit(self, conversation: Conversation) -> Conversation:
        """The conversation in the form this template takes; raises BadRow where it would drop tool calls."""
        if not self.source:
            raise BadRow("no-chat-template", "the model's tokenizer has no chat template")
        messages = [self._fit_message(message, i) for i, message in enumerate(conversation.messages, 1)]
        return Conversation(messages, conversation.tools)

    def special_at_end(self, text: str) -> str:
        """The special token that the text ends in, "" where it ends in none."""
        return next((text[-length:] for length in self._special_lengths if text[-length:] in self.special_tokens), "")

    def trimmed(self, text: str) -> str:
        """``text`` without the white space after its last special token: no model generates that newline."""
        short = text.rstrip()
        return short if short != text and self.special_at_end(short) else text

    @cached_property
    def traits(self) -> Traits:
        if not self.source:
            return Traits("", "", False, False, False, False, False)
        ways = [(as_text, none) for as_text in (False, True) for none in (False, True)]
        working = next((way for way in ways if self._shows_call(*way)), None)
        as_text, none = working or (False, False)
        return Traits(
            header=self._header(),
            closing=self._closing(),
            takes_tool_calls=working is not None,
            takes_tools=self._shows_tools(),
            arguments_as_text=as_text,
            calls_without_content=none,
            takes_developer="developer" in self.source,
        )

    def _fit_message(self, message: Message, number: int) -> Message:
        message = dict(message)
        if message["role"] == "developer" and not self.traits.takes_developer:
            message["role"] = "system"
        if "tool_calls" in message:
            self._require_calls(message, number)
            message["tool_calls"] = [self._fit_call(call) for call in message["tool_calls"]]
            message["content"] = None if self.traits.calls_without_content else message["content"] or ""
        return message

    def _require_calls(self, message: Message, number: int) -> None:
        if not self.traits.takes_tool_calls:
            raise BadRow("template-drops-tool-calls", f"turn {number} calls a tool; the template leaves calls out")
        if self.traits.calls_without_content and message["content"]:
            raise BadRow(
                "template-drops-tool-calls", f"turn {number} has words beside its call; the template shows only one"
            )

    def _fit_call(self, call: Message) -> Message:
        if not self.traits.arguments_as_text or isinstance(call["function"]["arguments"], str):
            return call
        return {**call, "function": {**call["function"], "arguments": _dumps(call["function"]["arguments"])}}

    def _header(self) -> str:
        question: list[Message] = [{"role": "user", "content": PROBE_USER}]
        try:
            text, prompt = self.render(question), self.render(question, generation_prompt=True)
        except BadRow as error:
            raise UsageError(f"the model's chat template refuses a plain question: {error.detail}") from error
        return prompt.removeprefix(text) if prompt.startswith(text) else ""

    def _closing(self) -> str:
        text = self.render(_exchange(_ANSWER))
        return self.trimmed(text.rpartition(PROBE_ANSWER)[2])

    def _shows_call(self, arguments_as_text: bool, without_content: bool) -> bool:
        """Whether a call shows up in the rendering, with its arguments not encoded twice."""
        arguments: Any = {"q": PROBE_ANSWER}
        function = {"name": PROBE_TOOL, "arguments": _dumps(arguments) if arguments_as_text else arguments}
        call = {"id": PROBE_CALL, "type": "function", "function": function}
        answer = {"role": "assistant", "content": None if without_content else "", "tool_calls": [call]}
        try:
            return PROBE_ANSWER in self.render(_exchange(answer))
        except BadRow:
            return False

    def _shows_tools(self) -> bool:
        parameters = {"type": "object", "properties": {}}
        function = {"name": PROBE_TOOL, "description": PROBE_TOOL, "parameters": parameters}
        try:
            return PROBE_TOOL in self.render(_exchange(_ANSWER), [{"type": "function", "function": function}])
        except BadRow:
            return False


def load_tokenizer(folder: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint; raises UsageError with the cause."""
    keep_native_data()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # any of a dozen, from missing files to remote code
        raise UsageError(f"no tokenizer could be loaded from {folder}: {error}") from error


def _exchange(answer: Message) -> list[Message]:
    return [{"role": "user", "content": PROBE_USER}, answer]


def _dumps(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)
