"""Limits of a body: counted before parsing, exact for JSON, named in the error."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.errors import BodyTooLarge, InvalidRequest
from trtllm_truss.protocols import base
from trtllm_truss.protocols.base import Budget, parse_json_object, parse_json_text
from trtllm_truss.protocols.fields import unknown_field
from trtllm_truss.protocols.openai.body import parse_chat, parse_completion
from trtllm_truss.protocols.predict import parse_predict
from trtllm_truss.protocols.responses.body import parse_response
from trtllm_truss.validation import shown

ROOM = 1 << 26


def parsed(value: Any) -> dict[str, Any]:
    return parse_json_object(json.dumps(value).encode(), ROOM)


def refusal(value: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parsed(value)
    return refused.value.message


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_size() -> None:
    body = b'{"prompt": "Hi"}'
    assert parse_json_object(body, len(body)) == {"prompt": "Hi"}
    with pytest.raises(BodyTooLarge, match="at most 15 bytes") as refused:
        parse_json_object(body, len(body) - 1)
    assert refused.value.status == 413
    assert "serving.max_body_bytes" in refused.value.message


@pytest.mark.parametrize(
    ("most", "few", "many", "word"),
    [
        (base.MAX_NESTING, nested, lambda n: nested(n), "levels deep"),
        (base.MAX_CONTAINERS, lambda n: [[]] * n, lambda n: [[]] * n, "arrays and objects"),
        (base.MAX_STRINGS, lambda n: [[]] * 65 + [""] * n, lambda n: [[]] * 65 + [""] * n,
         "strings"),
        (base.MAX_KEYS, lambda n: {str(i): 1 for i in range(n)},
         lambda n: {str(i): 1 for i in range(n)}, "keys"),
        (base.MAX_VALUES, lambda n: [1] * n, lambda n: [1] * n, "values"),
        (base.MAX_FRACTIONS, lambda n: [0.5, True, False, *[1] * 65_000] + [0.5] * n,
         lambda n: [0.5] * n, "fractions and exponents"),
    ],
)  # fmt: skip
def test_each_limit_accepts_values_up_to_it(most: int, few: Any, many: Any, word: str) -> None:
    assert parsed({"a": few(most - 4)})
    message = refusal({"a": many(most + 2)})
    assert word in message
    assert f"at most {most}" in message


TEXTS = st.text(alphabet=st.sampled_from('[]{},:"\\ae\n')) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=30,
)


@given(st.dictionaries(TEXTS, VALUES))
def test_brackets_in_strings_do_not_count(value: dict[str, Any]) -> None:
    """Many brackets in a string trigger the exact count, which must accept the body."""
    value["text"] = '[{",:\\' * 100
    assert parsed(value) == value


@given(st.lists(st.sampled_from([b'"', b"[1]", b"a" * 600, b"{}"])))
def test_long_strings_are_left_out_like_short_ones(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    outside = b"".join(text.split(b'"')[::2])
    for quotes in (0, text.count(b'"'), len(text)):
        assert base._outside_strings(text, quotes) == outside


@given(
    st.recursive(
        st.sampled_from([1, None, True, 0.5, float("inf"), "a", "é", "\ud800"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "\ud800"]), inner),
        max_leaves=10,
    )
)
def test_what_json_cannot_hold_is_found_without_writing_it(value: Any) -> None:
    try:
        base.json_bytes(value)
        is_encodable = True
    except ValueError:
        is_encodable = False
    assert base.is_encodable(value) == is_encodable


def test_a_string_of_brackets_is_valid() -> None:
    text = "[" * 1_000_000 + '"\\' * 100_000 + "," * 2_000_000
    assert parsed({"prompt": text}) == {"prompt": text}


@pytest.mark.parametrize("number", ["9" * 129, "0." + "9" * 129, "1e" + "9" * 129])
def test_a_long_number_is_refused(number: str) -> None:
    """Python reads an integer in a time that grows with the square of its digits."""
    numbers = ",".join(["9" * 128, "0.5"] * 300)
    assert parse_json_object(f'{{"a": [{numbers}]}}'.encode(), ROOM)
    with pytest.raises(InvalidRequest, match=r"number that is too long.* at most 128 digits"):
        parse_json_object(f'{{"a": [{numbers}, {number}]}}'.encode(), ROOM)
    assert parsed({"a": [1] * 40_000, "text": number}), "digits of texts do not count"


def test_texts_share_one_budget() -> None:
    """Twelve bodies with JSON inside of strings took 2.7 GB and 11 s of the event loop."""
    half = json.dumps({"a": [[]] * (base.MAX_CONTAINERS // 2 - 9)})
    budget = Budget(" in arguments of calls", "messages")
    assert parse_json_text(half, budget) == json.loads(half)
    assert parse_json_text(half, budget)
    with pytest.raises(InvalidRequest) as refused:
        parse_json_text(half, budget)
    assert refused.value.param == "messages"
    assert "arrays and objects in arguments of calls; at most 65536" in refused.value.message


HIDDEN = '{"a": [' + "[]," * (10 * base.MAX_CONTAINERS) + "[]]}"
PARTS = ['{"a": [' + "[]," * (base.MAX_CONTAINERS // 50) + "[]]}"] * 600
USER = {"role": "user", "content": "Hi"}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}


def item(arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments}


@pytest.mark.parametrize("texts", [[HIDDEN], PARTS], ids=["one", "many"])
@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, lambda texts: {"messages": [
            USER, {"role": "assistant", "tool_calls": [call(text) for text in texts]}]}),
        (parse_chat, lambda texts: {"messages": [
            {"role": "assistant", "function_call": call(text)["function"]} for text in texts]}),
        (parse_predict, lambda texts: {"messages": [
            {"role": "assistant", "tool_calls": [call(text)]} for text in texts]}),
        (parse_response, lambda texts: {"input": [item(text) for text in texts]}),
        (parse_chat, lambda texts: {"messages": [USER], "guided_json": "".join(texts)}),
        (parse_completion, lambda texts: {
            "prompt": "Hi", "structured_outputs": {"json": "".join(texts)}}),
    ],
)  # fmt: skip
def test_json_within_texts_keeps_the_limits_of_a_body(
    parse: Callable[..., Any], body: Callable[[list[str]], dict[str, Any]], texts: list[str]
) -> None:
    """No object of an oversized text is built."""
    sent = body(texts)
    with pytest.raises(InvalidRequest):
        parse(sent, {})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="at most 65536"):
            parse(sent, {})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 160 * base.MAX_CONTAINERS


@pytest.mark.parametrize("arguments", ['{"a": ' * 65 + "1" + "}" * 65, "[[]]", "{", "{'a': 1}"])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    messages = [USER, {"role": "assistant", "tool_calls": [call(arguments)]}]
    request = parse_chat({"messages": messages}, {}).requests[0]
    assert request.messages is not None
    assert request.messages[1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_the_calls_of_a_conversation_are_limited() -> None:
    turn = {"role": "assistant", "tool_calls": [call("{}")] * 1000}
    assert parse_chat({"messages": [turn] * 4}, {})
    with pytest.raises(InvalidRequest, match=r"messages has 5000 tool calls.* at most 4096"):
        parse_chat({"messages": [turn] * 5}, {})


def test_errors_stay_short() -> None:
    assert len(shown({"a": ["x" * 1_000_000]})) < 80
    error = unknown_field("n" * 1_000_000, ["prompt"])
    assert len(error.message) + len(error.param or "") < 300
