"""Notation of the outputs in this folder.

A module has `CASES`, a list of `case(output, *parts)`. A part is a text, a `Call`, a `Cut` call
with the arguments that came before the fault, or a `Think`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trtllm_truss.tool_calls.events import Tool


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Cut(NamedTuple):
    name: str
    json: str


class Think(NamedTuple):
    text: str


class Case(NamedTuple):
    output: str
    parts: list[str | Call | Cut | Think]


def case(output: str, *parts: str | Call | Cut | Think) -> Case:
    return Case(output, list(parts))


def plain(output: str) -> Case:
    """An output that is all text."""
    return Case(output, [output])


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


_STRING = {"type": "string"}

TOOLS = [
    Tool(
        "get_weather",
        _object(
            city=_STRING,
            unit={"enum": ["celsius", "fahrenheit"]},
            days={"type": "integer"},
        ),
    ),
    Tool(
        "search",
        _object(
            query=_STRING,
            limit={"anyOf": [{"type": "integer"}, {"type": "null"}]},
            filters={"type": "object"},
            tags={"type": "array", "items": _STRING},
            exact={"type": "boolean"},
        ),
    ),
    Tool("get_time", {}),
    Tool(
        "send_mail",
        _object(
            to={"type": "array"}, subject=_STRING, body=_STRING, cc={"type": ["array", "null"]}
        ),
    ),
    Tool(
        "write_file",
        {
            **_object(path=_STRING, content=_STRING, meta={"$ref": "#/$defs/Meta"}),
            "$defs": {"Meta": _object(mode={"type": "integer"})},
        },
    ),
    Tool(
        "set_light",
        _object(
            on={"type": "boolean"}, level={"type": "number"}, color={"type": ["string", "null"]}
        ),
    ),
    Tool("math.add", _object(a={"type": "number"}, b={"type": "number"})),
    Tool("get-quote", _object(symbol=_STRING)),
]
