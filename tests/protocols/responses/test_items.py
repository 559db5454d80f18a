"""`input` to the messages of chat templates."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import (
    EasyInputMessage,
    ParsedResponseFunctionToolCall,
    ResponseCustomToolCallItem,
    ResponseCustomToolCallOutput,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from openai.types.responses.response_input_item import FunctionCallOutput, Message

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.conversation.items import ECHOED, READERS, read_items

REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "status": "completed",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
    "encrypted_content": None,
}
TEXT = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "phase": "final_answer",
    "content": [{"type": "output_text", "text": "Wait.", "annotations": [], "logprobs": []}],
}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "f",
    "arguments": '{"a": 1}',
    "parsed_arguments": {"a": 1},
}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "22"}


def test_a_text_is_a_message_of_the_user() -> None:
    assert read_items("Hi", None) == [{"role": "user", "content": "Hi"}]
    assert read_items("Hi", "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_messages_of_every_form() -> None:
    parts = [{"type": "input_text", "text": "One"}, {"type": "text", "text": "two"}]
    items = [
        {"role": "developer", "content": "Rhyme."},
        {"role": "user", "content": parts},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
        {"type": "message", "role": "system", "content": "Do.", "status": "completed", "id": None},
    ]
    assert read_items(items, "Be brief.") == [
        {"role": "system", "content": "Be brief.\n\nRhyme."},
        {"role": "user", "content": "One\ntwo"},
        {"role": "assistant", "content": "No"},
        {"role": "system", "content": "Do."},
    ]


def test_the_items_of_one_turn_are_one_message() -> None:
    second = {**CALL, "call_id": "call_2", "arguments": "oops"}
    parts = [{"type": "input_text", "text": "23"}]
    results = [RESULT, {**RESULT, "call_id": "call_2", "name": "f", "output": parts}]
    items = [{"role": "user", "content": "Hi"}, REASONING, TEXT, CALL, second, *results]
    _, turn, *found = read_items(items, None)
    assert turn == {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "Wait.",
        "tool_calls": [
            {"id": id_, "type": "function", "function": {"name": "f", "arguments": arguments}}
            for id_, arguments in (("call_1", {"a": 1}), ("call_2", "oops"))
        ],
    }
    assert found == [
        {"role": "tool", "tool_call_id": "call_1", "content": "22"},
        {"role": "tool", "tool_call_id": "call_2", "content": "23", "name": "f"},
    ]


def test_calls_keep_the_names_that_the_model_knows() -> None:
    custom = {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": 'a "b"'}
    output = {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."}
    items = [{"role": "user", "content": "Hi"}, {**CALL, "namespace": "mail"}, custom, output]
    _, turn, result = read_items(items, None)
    assert [call["function"] for call in turn["tool_calls"]] == [
        {"name": "mail__f", "arguments": {"a": 1}},
        {"name": "patch", "arguments": {"input": 'a "b"'}},
    ]
    assert result == {"role": "tool", "tool_call_id": "call_2", "content": "Done."}


def test_reasoning_is_its_text_or_else_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "I thought."}]
    for content, kept in ((None, "I thought."), ([], "I thought."), (REASONING["content"], "Hm.")):
        items = [{"role": "user", "content": "Hi"}, {**REASONING, "content": content}, TEXT]
        items[1]["summary"] = summary
        assert read_items(items, None)[1] == {
            "role": "assistant",
            "reasoning_content": kept,
            "content": "Wait.",
        }


def test_reasoning_without_text_is_ignored() -> None:
    items = [{"role": "user", "content": "Hi"}, {**REASONING, "content": None}, TEXT]
    assert read_items(items, None)[1] == {"role": "assistant", "content": "Wait."}


def test_a_result_with_an_image_goes_on() -> None:
    output = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "x"}]
    items = [{"role": "user", "content": "Hi"}, CALL, {**RESULT, "output": output}]
    assert read_items(items, None)[-1]["content"] == "a\n[image omitted]"


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("message", [EasyInputMessage, Message, ResponseOutputMessage]),
        ("function_call", [ResponseFunctionToolCall, ParsedResponseFunctionToolCall]),
        ("function_call_output", [FunctionCallOutput]),
        ("custom_tool_call", [ResponseCustomToolCallItem]),
        ("custom_tool_call_output", [ResponseCustomToolCallOutput]),
        ("reasoning", [ResponseReasoningItem]),
    ],
)
def test_every_key_of_the_clients_types_is_known(kind: str, types: list[Any]) -> None:
    keys = {name for each in types for name in each.model_fields}
    assert keys <= READERS[kind][1] | ECHOED | {"type"}


@pytest.mark.parametrize(
    ("sent", "read"), [(["a"], '["a"]'), (None, {}), ({}, {}), ('{"a', '{"a'), (5, "5")]
)
def test_odd_arguments_of_earlier_calls_go_on(sent: Any, read: Any) -> None:
    (turn,) = read_items([{**CALL, "arguments": sent}], None)
    assert turn["tool_calls"][0]["function"]["arguments"] == read


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "input is null; it must be a text"),
        ([], r"input is \[\]; it must be a text"),
        ([5], r"input\[0\] is 5; it must be an item"),
        ([{"id": "msg_1"}], r"input\[0\] refers to an item, but answers are not stored; send the"),
        ([{"type": "item_reference", "id": "msg_1"}], "AI SDK does with .*store: false"),
        (
            [{"type": "web_search_call", "id": "ws_1"}],
            r'input\[0\].type is "web_search_call"; it must be one of message, function_call, ',
        ),
        ([{"type": ["message"]}], r'input\[0\].type is \["message"\]; it must be one of'),
        ([{"role": "tool", "content": "a"}], r'input\[0\].role is "tool"; it must be one of user'),
        ([{"role": "user", "content": None}], r"input\[0\].content is null; it must be a text"),
        ([{"role": "user", "content": "\ud800"}], r"input\[0\].content contains a lone surrogate"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            r'input\[0\].content\[0\] is of type "input_image"; only parts of type input_text',
        ),
        ([{"role": "user", "content": "a", "nam": "b"}], r"input\[0\].nam is not read in an item"),
        ([{**CALL, "name": ""}], r'input\[0\].name is ""; it must be a non-empty string'),
        ([{**RESULT, "call_id": None}], r"input\[0\].call_id is null"),
        ([{**REASONING, "content": []}], "it must be a list with a message"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        read_items(value, None)
    assert raised.value.param == "input"


def test_keys_that_clients_keep_for_themselves_pass() -> None:
    item = {"type": "message", "role": "user", "content": "Hi", "__own": {"any": 1}}
    assert read_items([item], None) == [{"role": "user", "content": "Hi"}]
    with pytest.raises(InvalidRequest, match="_own is not read"):
        read_items([{**item, "_own": 1}], None)
