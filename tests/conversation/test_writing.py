"""Ids of calls and schemas of functions, as templates get them."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.conversation.form import Form
from trtllm_truss.conversation.writing import identified, simple_schema, write


def _calls(*ids: str | None) -> dict[str, Any]:
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": {}}, **({"id": i} if i else {})}
        for i in ids
    ]
    return {"role": "assistant", "tool_calls": calls}


def _result(id_: str | None) -> dict[str, Any]:
    return {"role": "tool", "content": "x", **({"tool_call_id": id_} if id_ else {})}


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("turns", "ids"),
    [
        ([_calls("a", "b"), _result("b"), _result("a")], ["a", "b", "b", "a"]),
        ([_calls(None, None), _result(None), _result(None)], ["call_0", "call_1"] * 2),
        ([_calls("a"), _result("a"), _calls("a"), _result("a")], ["a", "a", "a_1", "a_1"]),
        ([_calls("a", "a"), _result("a"), _result("a")], ["a", "a_1", "a", "a_1"]),
        ([_calls("a"), _result("a"), _result("a")], ["a", "a", "a"]),
        ([_calls("a"), USER, _result("a")], ["a", "a"]),
        ([_calls("a"), _result("z"), USER, _result("z")], ["a", "z", "z_2"]),
        ([_calls("a"), _result("a"), USER, _calls("a"), _result("a")], ["a", "a", "a_1", "a_1"]),
        ([USER, _result(None)], [None]),
    ],
)
def test_each_call_has_an_id_of_its_own(turns: list[dict[str, Any]], ids: list[Any]) -> None:
    found: list[Any] = []
    for turn in identified(turns):
        if turn["role"] == "tool":
            found.append(turn.get("tool_call_id"))
        found += [call["id"] for call in turn.get("tool_calls", ())]
    assert found == ids
    assert identified(identified(turns)) == identified(turns)


@pytest.mark.parametrize("form", [Form(), Form(fills_parameters=True, simple_types=True)])
def test_nulls_of_a_function_are_left_out(form: Form) -> None:
    parameters = {"type": "object", "properties": None, "required": None}
    function = {"name": "f", "description": None, "parameters": parameters}
    written = write([USER], [{"type": "function", "function": function}], form)
    (tool,) = written.variables["tools"]
    assert None not in [*tool["function"].values(), *tool["function"]["parameters"].values()]
    assert function["description"] is None


def test_a_simple_schema_has_one_known_type_at_each_place() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["null", "string"], "description": None},
            "b": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "date"}}]},
            "c": True,
        },
    }
    assert simple_schema(schema)["properties"] == {
        "a": {"type": "string", "description": ""},
        "b": {"type": "array", "items": {"type": "string"}, "description": ""},
        "c": {"type": "string", "description": ""},
    }


def _said(role: str, name: str | None, **keys: Any) -> dict[str, Any]:
    return {"role": role, "content": "x", **({"name": name} if name else {}), **keys}


@pytest.mark.parametrize(
    ("turns", "texts"),
    [
        ([_said("system", "a"), _said("user", "b")], ["a: x", "b: x"]),
        ([USER, _said("assistant", "c"), USER, _said("assistant", "c")], ["x"] * 4),
        ([_said("assistant", "c"), _said("assistant", "d")], ["c: x", "d: x"]),
        ([_said("assistant", "c"), _said("assistant", None)], ["c: x", "x"]),
        ([_said("user", "b", content="")], ["b:"]),
        ([_calls("1"), _said("tool", "f", tool_call_id="1")], [None, "x"]),
        ([_calls("1"), _said("tool", "g", tool_call_id="1")], [None, "g: x"]),
        ([_said("tool", "g")], ["g: x"]),
    ],
)
def test_names_begin_texts(turns: list[dict[str, Any]], texts: list[Any]) -> None:
    """Not the name of the only assistant, which would repeat it, nor the one in the call."""
    before = [dict(turn) for turn in turns]
    messages = write(turns, None, Form(names="text")).messages
    assert [message["content"] for message in messages] == texts
    assert {message.get("name") for message in messages if message["role"] != "tool"} <= {None}
    assert turns == before
    kept = write(turns, None, Form()).messages
    assert [message.get("name") for message in kept] == [turn.get("name") for turn in turns]
