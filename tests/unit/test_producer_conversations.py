"""Each shape is found in its rows and read to the same conversation; each kind of damage has its own reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eaglefeed.errors import BadRow
from producer.conversations import Conversation, Preformatted, Tokenized, find_shape, parse, read
from producer.rows import Row, row_id

QA = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


def content_of(record: dict[str, Any]) -> Any:
    return read(record, find_shape(record))


@pytest.mark.parametrize(
    ("shape", "record"),
    [
        ("messages", {"messages": QA}),
        ("messages", {"conversations": QA}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, QA[1]]}),
        ("messages", {"messages": [QA[0], {**QA[1], "tool_calls": None, "name": None, "reasoning_content": None}]}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}),
        ("sharegpt", {"conversation": [{"from": "User", "value": "Q"}, {"from": "ASSISTANT", "value": "A"}]}),
        ("alpaca", {"instruction": "Q", "input": "", "output": "A"}),
        ("alpaca", {"instruction": "Q", "output": "A", "input": None}),
        ("pairs", {"prompt": "Q", "response": "A"}),
        ("pairs", {"question": "Q", "answer": "A"}),
        ("pairs", {"prompt": QA[:1], "completion": QA[1:]}),
        ("pairs", {"input": "Q", "output": "A", "text": None}),
    ],
)
def test_a_question_and_an_answer_in_every_shape(shape: str, record: dict[str, Any]) -> None:
    """All shapes come to the same two messages."""
    assert find_shape(record) == shape
    assert content_of(record) == Conversation(QA, None)


def test_alpaca_with_input_system_and_history() -> None:
    """The input follows the instruction, the history stands before both."""
    record = {"instruction": "Sum", "input": "1 2", "output": "3", "system": "S", "history": [["a", "b"]]}
    roles = [(message["role"], message["content"]) for message in content_of(record).messages]
    assert roles == [
        ("system", "S"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "Sum\n\n1 2"),
        ("assistant", "3"),
    ]


def test_sharegpt_tools() -> None:
    """function_call becomes a tool call, observation a tool result, a JSON text of tools a list of schemas."""
    record = {
        "conversations": [
            {"from": "human", "value": "Weather?"},
            {"from": "function_call", "value": '{"name": "w", "arguments": {"city": "Oslo"}}'},
            {"from": "observation", "value": "rain"},
            {"from": "gpt", "value": "Rain."},
        ],
        "tools": '[{"name": "w", "parameters": {}}]',
        "system": "Be brief.",
    }
    conversation = content_of(record)
    assert [message["role"] for message in conversation.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert conversation.messages[2]["tool_calls"][0]["function"] == {"name": "w", "arguments": {"city": "Oslo"}}
    assert conversation.tools == [{"type": "function", "function": {"name": "w", "parameters": {}}}]


def test_openai_calls_results_and_reasoning() -> None:
    """Arguments given as JSON text are parsed; reasoning, call ids and names are kept."""
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "R"},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "ra"}, {"type": "text", "text": "in"}],
        },
        {"role": "assistant", "content": "A", "reasoning": "R2"},
    ]
    found = content_of({"messages": messages}).messages
    assert found[2]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "w", "arguments": {"city": "Oslo"}}}
    ]
    assert (found[2]["reasoning_content"], found[4]["reasoning_content"]) == ("R", "R2")
    assert found[3] == {"role": "tool", "tool_call_id": "c1", "content": "rain"}


def test_text_and_token_ids() -> None:
    """A preformatted text is taken whole; labels of -100 are not supervised; padding is left out."""
    assert content_of({"text": "<|im_start|>"}) == Preformatted("<|im_start|>")
    assert content_of({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}) == Tokenized([5, 6, 7], [0, 1, 1])
    assert content_of({"input_ids": [5, 6, 7], "loss_mask": [False, True, True]}) == Tokenized([5, 6, 7], [0, 1, 1])
    assert content_of({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}) == Tokenized([5, 6, 7], [0, 1, 1])
    padded = {"input_ids": [0, 5, 6, 0], "loss_mask": [0, 0, 1, 0], "attention_mask": [0, 1, 1, 0]}
    assert content_of(padded) == Tokenized([5, 6], [0, 1])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "unknown-shape"),
        ({"title": "x"}, "unknown-shape"),
        ({"messages": []}, "empty"),
        ({"conversations": []}, "empty"),
        ({"messages": "hello"}, "wrong-type"),
        ({"messages": {"role": "user"}}, "wrong-type"),
        ({"messages": [QA[0], "hello"]}, "wrong-type"),
        ({"messages": [QA[0]]}, "one-sided"),
        ({"messages": [QA[1]]}, "one-sided"),
        ({"messages": [QA[0], {"role": "assistant", "content": "  \n"}]}, "empty"),
        ({"messages": [QA[0], {"role": "assistant", "content": 7}]}, "wrong-type"),
        ({"messages": [QA[0], {"role": "assistant", "content": None}]}, "wrong-type"),
        ({"messages": [QA[0], {"role": "critic", "content": "A"}]}, "unknown-role"),
        ({"messages": [QA[0], {"role": ["assistant"], "content": "A"}]}, "unknown-role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, QA[1]]}, "unsupported-part"),
        ({"messages": [QA[0], {"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]}, "bad-tool-call"),
        (
            {"messages": [QA[0], {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "bad-tool-call",
        ),
        ({"messages": QA, "tools": "{"}, "bad-tools"),
        ({"conversations": [{"from": "human", "value": "Q"}, {"from": "moderator", "value": "A"}]}, "unknown-role"),
        (
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "function_call", "value": "w()"}]},
            "bad-tool-call",
        ),
        ({"instruction": "Q", "output": 5}, "wrong-type"),
        ({"instruction": "Q", "output": ""}, "empty"),
        ({"prompt": "Q", "response": ["A"]}, "wrong-type"),
        ({"text": ""}, "empty"),
        ({"text": 3}, "wrong-type"),
        ({"input_ids": [1, 2]}, "no-loss-mask"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "length-mismatch"),
        ({"input_ids": [1, 2], "labels": [1]}, "length-mismatch"),
        ({"input_ids": [1, 2, 3], "labels": [2, 3, -100]}, "labels-differ"),
        ({"input_ids": [1, 2.5], "loss_mask": [1, 1]}, "wrong-type"),
        ({"input_ids": [1, True], "loss_mask": [1, 1]}, "wrong-type"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "wrong-type"),
        ({"input_ids": "12", "loss_mask": [1, 1]}, "wrong-type"),
        ({"input_ids": [], "loss_mask": []}, "empty"),
        ({"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1], "attention_mask": [1, 0, 1]}, "wrong-type"),
    ],
)
def test_each_kind_of_damage_has_its_reason(record: dict[str, Any], reason: str) -> None:
    """A row is refused by what is wrong with it, never by a traceback."""
    with pytest.raises(BadRow) as caught:
        content_of(record)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"messages": ', "invalid-json"),
        (b'{"messages": "\xff\xfe"}', "invalid-utf8"),
        (b"[1, 2]", "not-an-object"),
        (b"null", "not-an-object"),
        (b"[" * 100_000, "invalid-json"),
        (b'{"n": ' + b"9" * 5000 + b"}", "invalid-json"),
    ],
)
def test_bytes_that_are_no_row(data: bytes, reason: str) -> None:
    """Broken JSON, bytes that are not UTF-8, values that are no object, nesting without end."""
    with pytest.raises(BadRow) as caught:
        parse(Row("f", 1, data))
    assert caught.value.reason == reason


def test_a_forced_shape_reads_the_row_as_that() -> None:
    """A row with both a text and messages is read as the shape that was asked for."""
    record = {"messages": QA, "text": "T"}
    assert find_shape(record) == "messages"
    assert read(record, "text") == Preformatted("T")


def test_row_ids_are_for_reports() -> None:
    """Whatever a row calls itself is kept as text."""
    assert [row_id({"id": 7}), row_id({"conversation_id": "c"}), row_id({"id": True}), row_id([])] == ["7", "c", "", ""]
    assert json.dumps(row_id({"id": "x" * 1000})) == json.dumps("x" * 200)
