"""Guides that are too long are refused before their text is written."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols import fields
from trtllm_truss.protocols.base import MAX_GUIDE_CHARACTERS
from trtllm_truss.protocols.fields import check_size, schema_text
from trtllm_truss.protocols.openai.body import parse_chat

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(st.dictionaries(st.text(), VALUES))
def test_no_text_that_fits_is_refused(schema: dict[str, Any]) -> None:
    text = json.dumps(schema, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "MAX_GUIDE_CHARACTERS", len(text))
        assert schema_text(schema, "schema", "schema") == text


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1] * (MAX_GUIDE_CHARACTERS // 2)},
        {"allOf": [{}] * (MAX_GUIDE_CHARACTERS // 2)},
        {str(n): 1 for n in range(MAX_GUIDE_CHARACTERS // 7)},
        {"description": "a" * MAX_GUIDE_CHARACTERS},
    ],
)
def test_a_long_one_is_refused_by_its_parts(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="schema is too long; it must have at most 65536"):
        check_size(schema, "schema", "schema")


def test_a_forced_call_copies_no_long_schema() -> None:
    """An `enum` of 500,000 values stopped the event loop for half a second."""
    function = {"name": "f", "parameters": {"properties": {"a": {"enum": [1] * 100_000}}}}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
    }
    parse_refused(body)
    seen = set()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code.co_name))
    try:
        parse_refused(body)
    finally:
        sys.setprofile(None)
    assert "check_size" in seen
    assert "_rooted" not in seen


def parse_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="the schema of tools is too long"):
        parse_chat(body, {})


def test_the_choices_of_a_guide_stop_at_the_first_wrong_one() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "guided_choice": [1] * 1000}
    with pytest.raises(InvalidRequest, match=r"guided_choice\[0\] is 1") as refused:
        parse_chat(body, {})
    cause = refused.value.__context__
    assert len(cause.errors()) == 1  # type: ignore[union-attr]
