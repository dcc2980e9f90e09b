"""One row of any known shape becomes messages, a preformatted text, or token ids.

Shapes, in the order they are looked for::

    tokenized   input_ids + loss_mask, or labels (-100 = not supervised), not shifted
    sharegpt    conversations: [{from, value}]        (human, gpt, system, tool, function_call, observation)
    messages    messages or conversations: [{role, content}], tool calls and results, reasoning_content, parts
    alpaca      instruction, input, output            (system, history)
    pairs       prompt/response and their synonyms, each a text or a list of messages
    text        text, preformatted with the model's own template
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eaglefeed.errors import BadRow
from producer import turns
from producer.rows import Row

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as chat templates take them; ``tools`` as JSON schemas."""

    messages: list[turns.Message]
    tools: list[Record] | None = None


@dataclass(frozen=True, slots=True)
class Preformatted:
    """A text in the model's own template."""

    text: str


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids and the loss mask beside them, not yet checked against a vocabulary."""

    token_ids: list[int]
    loss_mask: list[int]


Content = Conversation | Preformatted | Tokenized

QUESTION_KEYS = ("prompt", "question", "query", "user", "input", "problem")
ANSWER_KEYS = ("response", "completion", "answer", "assistant", "output", "solution")


def parse(row: Row) -> Record:
    """The row's JSON object; raises BadRow with its own reason for each kind of damage."""
    if row.reason:
        raise BadRow(row.reason, row.detail)
    record = row.data
    if isinstance(record, bytes):
        record = _decode(record)
    if not isinstance(record, dict):
        raise BadRow("not-an-object", f"the row is a JSON {type(record).__name__}, not an object")
    return record


def find_shape(record: Record) -> str:
    """The name of the row's shape; raises BadRow when it has none."""
    for name, (is_shape, _) in SHAPES.items():
        if is_shape(record):
            return name
    keys = ", ".join(sorted(map(str, record))[:12])
    raise BadRow("unknown-shape", f"no known shape has the keys {keys or '(none)'}")


def read(record: Record, shape: str) -> Content:
    """The row's content, read as ``shape``; raises BadRow."""
    return SHAPES[shape][1](record)


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRow("invalid-utf8", f"byte {error.start} of the row: {error.reason}") from error
    except (ValueError, RecursionError) as error:
        raise BadRow("invalid-json", str(error)[:300]) from error


def _is_sharegpt(record: Record) -> bool:
    return any("from" in turn for turn in _first_dicts(record, turns.LIST_KEYS))


def _is_messages(record: Record) -> bool:
    return any(record.get(key) is not None for key in turns.LIST_KEYS)


def _first_dicts(record: Record, keys: tuple[str, ...]) -> list[Record]:
    lists = (record.get(key) for key in keys)
    return [entry[0] for entry in lists if isinstance(entry, list) and entry and isinstance(entry[0], dict)]


def _is_alpaca(record: Record) -> bool:
    return "instruction" in record and ("output" in record or "response" in record)


def _pair_keys(record: Record) -> tuple[str, str] | None:
    question = next((key for key in QUESTION_KEYS if record.get(key) is not None), None)
    answer = next((key for key in ANSWER_KEYS if record.get(key) is not None), None)
    return (question, answer) if question and answer else None


def _read_messages(record: Record) -> Content:
    return Conversation(turns.from_messages(record), turns.find_tools(record))


def _read_sharegpt(record: Record) -> Content:
    return Conversation(turns.from_sharegpt(record), turns.find_tools(record))


def _read_alpaca(record: Record) -> Content:
    question = _text(record, "instruction")
    extra = _text(record, "input") if record.get("input") is not None else ""
    if extra.strip():
        question = f"{question}\n\n{extra}" if question else extra
    answer = _text(record, "output" if "output" in record else "response")
    messages = [*_alpaca_history(record), _message("user", question), _message("assistant", answer)]
    return Conversation(turns.checked(messages))


def _alpaca_history(record: Record) -> list[turns.Message]:
    system, history = record.get("system"), record.get("history") or []
    messages = [_message("system", system)] if isinstance(system, str) and system else []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRow("wrong-type", "history is not a list of [question, answer]")
    for question, answer in history:
        messages += [_message("user", question), _message("assistant", answer)]
    return messages


def _read_pairs(record: Record) -> Content:
    keys = _pair_keys(record)
    if keys is None:
        raise BadRow("one-sided", "a pair needs a prompt and a response")
    system = record.get("system") or record.get("system_prompt")
    messages = [_message("system", system)] if isinstance(system, str) and system else []
    for role, key in zip(("user", "assistant"), keys, strict=True):
        value = record[key]
        messages += value if isinstance(value, list) else [_message(role, _text(record, key))]
    return Conversation(turns.checked(messages), turns.find_tools(record))


def _read_text(record: Record) -> Content:
    text = _text(record, "text")
    if not text.strip():
        raise BadRow("empty", "an empty text")
    return Preformatted(text)


def _read_tokenized(record: Record) -> Content:
    token_ids = _numbers(record, "input_ids")
    if record.get("loss_mask") is not None:
        mask = _numbers(record, "loss_mask")
        if set(mask) - {0, 1}:
            raise BadRow("wrong-type", "loss_mask holds numbers other than 0 and 1")
    elif record.get("labels") is not None:
        mask = _mask_of_labels(token_ids, _numbers(record, "labels"))
    else:
        raise BadRow("no-loss-mask", "input_ids without loss_mask or labels")
    if len(mask) != len(token_ids):
        raise BadRow("length-mismatch", f"{len(token_ids)} input_ids and a mask of {len(mask)}")
    if not token_ids:
        raise BadRow("empty", "no token")
    return Tokenized(*_without_padding(record, token_ids, mask))


def _mask_of_labels(token_ids: list[int], labels: list[int]) -> list[int]:
    if len(labels) != len(token_ids):
        raise BadRow("length-mismatch", f"{len(token_ids)} input_ids and {len(labels)} labels")
    for position, (token, label) in enumerate(zip(token_ids, labels, strict=True)):
        if label not in (-100, token):
            raise BadRow("labels-differ", f"label {label} at position {position} beside token {token}; shifted labels?")
    return [int(label != -100) for label in labels]


def _without_padding(record: Record, token_ids: list[int], mask: list[int]) -> tuple[list[int], list[int]]:
    if record.get("attention_mask") is None:
        return token_ids, mask
    attention = _numbers(record, "attention_mask")
    if len(attention) != len(token_ids) or set(attention) - {0, 1}:
        raise BadRow("length-mismatch", f"{len(token_ids)} input_ids and an attention_mask of {len(attention)}")
    if 1 not in attention:
        raise BadRow("empty", "attention_mask hides every token")
    start, end = attention.index(1), len(attention) - attention[::-1].index(1)
    if 0 in attention[start:end]:
        raise BadRow("wrong-type", "attention_mask has a hole: several rows packed into one?")
    return token_ids[start:end], mask[start:end]


def _numbers(record: Record, key: str) -> list[int]:
    value = record.get(key)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list):
        raise BadRow("wrong-type", f"{key} is a {type(value).__name__}, not a list")
    allowed = (int, bool) if key != "input_ids" else (int,)
    if not set(map(type, value)) <= set(allowed):
        raise BadRow("wrong-type", f"{key} holds something that is not a whole number")
    return list(map(int, value))


def _text(record: Record, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise BadRow("wrong-type", f"{key} is a {type(value).__name__}, not a text")
    return value


def _message(role: str, content: object) -> turns.Message:
    return {"role": role, "content": content}


SHAPES: dict[str, tuple[Callable[[Record], bool], Callable[[Record], Content]]] = {
    "tokenized": (lambda record: "input_ids" in record, _read_tokenized),
    "sharegpt": (_is_sharegpt, _read_sharegpt),
    "messages": (_is_messages, _read_messages),
    "alpaca": (_is_alpaca, _read_alpaca),
    "pairs": (lambda record: _pair_keys(record) is not None, _read_pairs),
    "text": (lambda record: "text" in record, _read_text),
}
