"""Turns of ShareGPT and OpenAI rows, brought to the one form that chat templates take."""

from __future__ import annotations

import json
from typing import Any

from eaglefeed.errors import BadRow

Message = dict[str, Any]

LIST_KEYS = ("conversations", "conversation", "messages")

SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "observation": "tool",
    "function_call": "function_call",
    "tool_call": "function_call",
}
OPENAI_ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def from_sharegpt(record: Message) -> list[Message]:
    """``from``/``value`` turns as messages, a leading ``system`` column first; raises BadRow naming the turn."""
    messages = _system_column(record)
    for number, turn in enumerate(_turns(record), 1):
        if not isinstance(turn, dict):
            raise BadRow("wrong-type", f"turn {number} is a {type(turn).__name__}, not an object")
        speaker, value = turn.get("from"), turn.get("value")
        role = SHAREGPT_ROLES.get(speaker.lower()) if isinstance(speaker, str) else None
        if role is None:
            raise BadRow("unknown-role", f"turn {number} is from {speaker!r}")
        if role == "function_call":
            messages.append({"role": "assistant", "content": "", "tool_calls": _calls_of_text(value, number)})
        else:
            messages.append({**turn, "role": role, "content": value})
    return checked(messages)


def from_messages(record: Message) -> list[Message]:
    """``role``/``content`` turns; raises BadRow naming the turn."""
    return checked([*_system_column(record), *_turns(record)])


def checked(turns: list[Message]) -> list[Message]:
    """Messages with known roles, text contents and parsed tool calls, at least one of user and one of assistant."""
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, dict):
            raise BadRow("wrong-type", f"turn {number} is a {type(turn).__name__}, not an object")
    messages = [_message(turn, number) for number, turn in enumerate(turns, 1)]
    roles = {message["role"] for message in messages}
    if not messages:
        raise BadRow("empty", "a conversation without turns")
    if "assistant" not in roles:
        raise BadRow("one-sided", f"no assistant turn among {len(messages)}")
    if not roles & {"user", "tool"}:
        raise BadRow("one-sided", f"no user turn among {len(messages)}")
    if not any(_has_words(message) for message in messages if message["role"] == "assistant"):
        raise BadRow("empty", "every assistant turn is empty")
    return messages


def find_tools(record: Message) -> list[Message] | None:
    """The row's tool definitions as a list of JSON schemas; a JSON text is parsed."""
    tools = record.get("tools") or record.get("functions")
    if isinstance(tools, str):
        if not tools.strip():
            return None
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise BadRow("bad-tools", f"`tools` is a text that is not JSON: {error}") from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow("bad-tools", "`tools` is not a list of objects")
    return [tool if "function" in tool or "type" in tool else {"type": "function", "function": tool} for tool in tools]


def _turns(record: Message) -> list[Message]:
    present = [record[key] for key in LIST_KEYS if record.get(key) is not None]
    turns = present[0] if present else None
    if not isinstance(turns, list):
        raise BadRow("wrong-type", f"the conversation is a {type(turns).__name__}, not a list of turns")
    return turns


def _system_column(record: Message) -> list[Message]:
    system = record.get("system") or record.get("system_prompt")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def _message(turn: Message, number: int) -> Message:
    role = turn.get("role")
    if not isinstance(role, str) or role not in OPENAI_ROLES:
        raise BadRow("unknown-role", f"turn {number} has the role {role!r}")
    message: Message = {"role": "tool" if role == "function" else role}
    message["content"] = _content(turn.get("content"), number)
    reasoning = next((turn[key] for key in REASONING_KEYS if turn.get(key)), None)
    if reasoning is not None:
        message["reasoning_content"] = _content(reasoning, number)
    if turn.get("tool_calls") or turn.get("function_call"):
        message["tool_calls"] = _calls(turn, number)
    for key in ("name", "tool_call_id"):
        if isinstance(turn.get(key), str):
            message[key] = turn[key]
    if message["content"] is None and "tool_calls" not in message:
        if role != "assistant" or reasoning is None:
            raise BadRow("wrong-type", f"turn {number} ({role}) has no content")
        message["content"] = ""
    return message


def _content(content: object, number: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part, number) for part in content)
    raise BadRow("wrong-type", f"the content of turn {number} is a {type(content).__name__}, not a text")


def _part(part: object, number: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text", None):
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise BadRow("unsupported-part", f"turn {number} has a part of type {kind!r}; only texts can be prefilled")


def _calls(turn: Message, number: int) -> list[Message]:
    calls = turn.get("tool_calls") or [turn["function_call"]]
    if not isinstance(calls, list):
        raise BadRow("bad-tool-call", f"tool_calls of turn {number} is not a list")
    return [_call(call, number) for call in calls]


def _call(call: object, number: int) -> Message:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow("bad-tool-call", f"a tool call of turn {number} has no function name")
    record: Message = {"type": "function", "function": {"name": function["name"]}}
    if isinstance(call, dict) and isinstance(call.get("id"), str):
        record["id"] = call["id"]
    record["function"]["arguments"] = _arguments(function.get("arguments", function.get("parameters")), number)
    return record


def _arguments(arguments: object, number: int) -> Message:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise BadRow("bad-tool-call", f"the arguments in turn {number} are not JSON: {error}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise BadRow("bad-tool-call", f"the arguments in turn {number} are not an object")
    return arguments


def _calls_of_text(value: object, number: int) -> list[Message]:
    if not isinstance(value, str):
        raise BadRow("wrong-type", f"the function call of turn {number} is not a text")
    try:
        calls = json.loads(value)
    except ValueError as error:
        raise BadRow("bad-tool-call", f"the function call of turn {number} is not JSON: {error}") from error
    return [_call(call, number) for call in (calls if isinstance(calls, list) else [calls])]


def _has_words(message: Message) -> bool:
    content, reasoning = message["content"], message.get("reasoning_content")
    return bool((content and content.strip()) or (reasoning and reasoning.strip()) or message.get("tool_calls"))
