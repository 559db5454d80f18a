"""Predict bodies: accepted, rejected, and error messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtllm_truss.errors import InvalidRequest, SettingsError
from trtllm_truss.protocols.base import parse_json_object
from trtllm_truss.protocols.predict import (
    REFUSED,
    UNUSED,
    parse_defaults,
    parse_predict,
    response_form,
)
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import Guide
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}


def refusal(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_predict(body, {})
    return caught.value


def test_defaults_are_the_documented_ones() -> None:
    request, stream = parse_predict({"prompt": "Hi"}, {})
    assert stream
    assert request.max_tokens == 50
    assert not request.max_tokens_given
    assert request.beam_width == 1
    assert request.stop_words == ()
    assert request.sampling == Sampling()
    assert not request.ignore_eos


@pytest.mark.parametrize(
    ("alias", "field", "value"),
    [
        ("stop_words_list", "stop_words", ("a", "b")),
        ("stop", "stop_words", ("a", "b")),
        ("bad_words_list", "bad_words", ("a", "b")),
        ("min_length", "min_tokens", 3),
        ("random_seed", "seed", 7),
        ("max_new_tokens", "max_tokens", 7),
        ("max_completion_tokens", "max_tokens", 7),
    ],
)
def test_aliases(alias: str, field: str, value: object) -> None:
    sent = list(value) if isinstance(value, tuple) else value
    request, _ = parse_predict({"prompt": "Hi", alias: sent}, {})
    holder = request.sampling if hasattr(request.sampling, field) else request
    assert getattr(holder, field) == value


def test_one_stop_word_may_be_a_plain_string() -> None:
    request, _ = parse_predict({"prompt": "Hi", "stop": "a,b\n"}, {})
    assert request.stop_words == ("a,b\n",)


def test_settings_give_defaults_that_a_body_overrides() -> None:
    defaults = parse_defaults({"max_tokens": 7, "temperature": 0.5, "stop": ["x"]})
    request, _ = parse_predict({"prompt": "Hi", "temperature": 1}, defaults)
    assert (request.max_tokens, request.sampling.temperature) == (7, 1)
    assert request.stop_words == ("x",)


def test_the_newer_limit_wins() -> None:
    body = {"prompt": "Hi", "max_tokens": 9, "max_completion_tokens": 7}
    assert parse_predict(body, {})[0].max_tokens == 7


def test_what_other_servers_take_passes() -> None:
    plain = parse_predict(CHAT, {})
    assert parse_predict({**CHAT, **dict.fromkeys(UNUSED, 1)}, {}) == plain
    neutral = {name: value for name, field in REFUSED.items() for value in field.neutral}
    nothing = {"tools": [], "stop": "", "top_p": None, "response_format": {"type": "text"}}
    assert parse_predict({**CHAT, **neutral, **nothing, "stop_token_ids": []}, {}) == plain


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_served_is_refused_with_the_remedy(name: str) -> None:
    error = refusal({**CHAT, name: 5})
    assert error.param == name
    assert "/v1/chat/completions" in error.message


def test_token_ids_that_end_the_answer() -> None:
    request, _ = parse_predict({"prompt": "Hi", "end_id": 2, "stop_token_ids": [7]}, {})
    assert (request.stop_token_ids, request.ignore_eos) == ((7, 2), False)
    request, _ = parse_predict({"prompt": "Hi", "end_id": -1}, {})
    assert (request.stop_token_ids, request.ignore_eos) == ((), True)


def test_a_response_format() -> None:
    body = {"prompt": "Hi", "response_format": {"type": "regex", "regex": "a+"}}
    request, _ = parse_predict(body, {})
    assert request.guide == Guide("regex", "a+")
    assert request.name("guide") == "response_format"


FORMATS = ModelFormats(TOOL_FORMATS["hermes"], REASONING_FORMATS["qwen3"])


def test_tools_reach_the_template_and_reasoning_stays_text() -> None:
    for fields, shown in (
        ({"tools": [TOOL]}, {"<tool_call>", "</tool_call>"}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"<think>", "</think>"}),
        ({"response_format": {"type": "json_object"}}, {"<think>", "</think>"}),
        ({}, set()),
    ):
        request, _ = parse_predict({**CHAT, **fields}, {}, FORMATS)
        assert request.chat.tools == fields.get("tools")
        assert request.chat.reasoning == FORMATS.reasoning
        assert not request.chat.shows_reasoning_start
        assert request.shown_special_tokens == shown


def test_messages_are_those_of_chats() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "w", "arguments": '{"a": 1}'}}
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call], "parsed": None},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "22"}]},
    ]
    request, _ = parse_predict({"messages": messages}, {})
    assert request.messages is not None
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert request.messages[2] == {"role": "tool", "tool_call_id": "c", "content": "22"}
    assert not request.chat.continue_final_message
    begun = {"role": "assistant", "content": "Once", "prefix": True}
    request, _ = parse_predict({"messages": [*CHAT["messages"], begun]}, {})
    assert request.chat.continue_final_message
    assert not request.chat.add_generation_prompt


def test_null_counts_as_not_sent() -> None:
    request, _ = parse_predict({"prompt": "Hi", "temperature": None, "max_tokens": None}, {})
    assert request.max_tokens == 50


@pytest.mark.parametrize(
    ("body", "param", "parts"),
    [
        ({}, "prompt", ["prompt is missing", "send the text"]),
        ({"prompt": None}, "prompt", ["prompt is null"]),
        ({"prompt": ""}, "prompt", ['prompt is ""', "must not be empty"]),
        ({"prompt": 5}, "prompt", ["prompt is 5", "must be a string"]),
        ({"prompt": "x", "messages": []}, "messages", ["messages is []", "must not be empty"]),
        ({"prompt": "x", "max_tokens": -4}, "max_tokens", ["-4", "at least 1"]),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", ["at least 1"]),
        ({"prompt": "x", "max_tokens": "x"}, "max_tokens", ['"x"', "whole number"]),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens", ["1.5", "whole number"]),
        ({"prompt": "x", "max_tokens": True}, "max_tokens", ["true", "whole number"]),
        ({"prompt": "x", "max_tokens": 2**31}, "max_tokens", ["2147483648", "at most"]),
        ({"prompt": "x", "top_p": 1.5}, "top_p", ["1.5", "at most 1"]),
        ({"prompt": "x", "temperature": -1}, "temperature", ["-1", "at least 0"]),
        ({"prompt": "x", "seed": -1}, "seed", ["-1", "at least 0"]),
        ({"prompt": "x", "stop": [""]}, "stop_words", ["stop_words[0]", "must not be empty"]),
        ({"prompt": "x", "stop": [["a"]]}, "stop_words", ["stop_words[0]", "must be a string"]),
        ({"prompt": "x", "stop": 3}, "stop_words", ["stop_words is 3", "must be a list"]),
        ({"prompt": "x", "stream": "yes"}, "stream", ["true or false"]),
        ({"prompt": "x", "tempature": 1}, "tempature", ["did you mean temperature?"]),
        ({"prompt": "x", "zzzz": 1}, "zzzz", ["the fields are", "max_tokens"]),
        ({"prompt": "x", "stop": ["a"], "stop_words": ["b"]}, "stop_words", ["both given"]),
        ({"prompt": "x", "min_tokens": 60}, "min_tokens", ["60", "at most max_tokens, 50"]),
        ({"messages": [{"role": "user"}]}, "messages", ["messages[0].content is missing"]),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages", ["messages[0].x"]),
        ({"messages": ["hi"]}, "messages", ["messages[0]", "must be an object"]),
        ({"prompt": "x", "tools": [TOOL]}, "tools", ["without messages"]),
        ({"prompt": "x", "tool_choice": "required"}, "tool_choice", ["send tools"]),
        ({"prompt": "x", "end_id": -2}, "end_id", ["-2", "at least -1"]),
        ({"prompt": "\ud800"}, "prompt", ["lone surrogates"]),
    ],
)
def test_errors_name_field_value_and_remedy(
    body: dict[str, Any], param: str, parts: list[str]
) -> None:
    error = refusal(body)
    assert error.status == 400
    assert (error.param or "").split("[")[0].split(".")[0] == param
    for part in parts:
        assert part in error.message


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal({"prompt": "x", "stop": {"a": "b" * 10_000}}).message) < 200


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "is a list"),
        (b'"x"', "is a string"),
        (b"3", "is 3"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "x", "top_p": NaN}', "NaN"),
        (b'{"prompt": "x", "top_p": -Infinity}', "-Infinity"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too long"),
        (b"[" * 100_000, "100000 levels deep"),
    ],
)
def test_bodies_that_are_not_json_objects(raw: bytes, part: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json_object(raw, 1 << 20)
    assert part in caught.value.message


def test_valid_body() -> None:
    text = json.dumps({"prompt": "é"})
    for encoding in ("utf-8", "utf-8-sig"):  # the latter starts with a byte-order mark
        assert parse_json_object(text.encode(encoding), 1 << 20) == {"prompt": "é"}


@pytest.mark.parametrize(
    ("accept", "stream", "form"),
    [
        ("*/*", True, "text"),
        ("", True, "text"),
        ("text/event-stream", True, "events"),
        ("application/json", True, "json"),
        ("application/json, text/event-stream", True, "events"),
        ("text/event-stream", False, "json"),
        ("*/*", False, "json"),
    ],
)
def test_response_form(accept: str, stream: bool, form: str) -> None:
    assert response_form(accept, stream) == form


@pytest.mark.parametrize("bad", [{"max_tokens": -1}, {"prompt": "x"}, {"nonsense": 1}])
def test_bad_defaults_are_settings_errors(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"model_metadata\.generation"):
        parse_defaults(bad)
