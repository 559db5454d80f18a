"""Limits of a body: counted before parsing, exact for JSON, named in the error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_truss.errors import BodyTooLarge, InvalidRequest
from trtllm_truss.protocols import limits
from trtllm_truss.protocols.fields import unknown_field
from trtllm_truss.protocols.json_body import parse_json_object
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
    with pytest.raises(BodyTooLarge, match="16 bytes; at most 15") as refused:
        parse_json_object(body, len(body) - 1)
    assert refused.value.status == 413
    assert "serving.max_body_bytes" in refused.value.message


@pytest.mark.parametrize(
    ("most", "few", "many", "word"),
    [
        (limits.MAX_NESTING, nested, lambda n: nested(n), "levels deep"),
        (limits.MAX_CONTAINERS, lambda n: [[]] * n, lambda n: [[]] * n, "arrays and objects"),
        (limits.MAX_STRINGS, lambda n: [[]] * 65 + [""] * n, lambda n: [[]] * 65 + [""] * n,
         "strings"),
        (limits.MAX_KEYS, lambda n: {str(i): 1 for i in range(n)},
         lambda n: {str(i): 1 for i in range(n)}, "keys"),
        (limits.MAX_VALUES, lambda n: [1] * n, lambda n: [1] * n, "values"),
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


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.dictionaries(TEXTS, VALUES))
def test_brackets_in_strings_do_not_count(value: dict[str, Any]) -> None:
    """Many brackets in a string trigger the exact count, which must accept the body."""
    value["text"] = '[{",:\\' * 100
    assert parsed(value) == value


def test_a_string_of_brackets_is_valid() -> None:
    text = "[" * 1_000_000 + '"\\' * 100_000 + "," * 2_000_000
    assert parsed({"prompt": text}) == {"prompt": text}


def test_errors_stay_short() -> None:
    assert len(shown({"a": ["x" * 1_000_000]})) < 80
    error = unknown_field("n" * 1_000_000, ["prompt"])
    assert len(error.message) + len(error.param or "") < 300
