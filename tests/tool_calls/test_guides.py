from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tool_calls.outputs.notation import TOOLS, Call
from tests.tool_calls.parsing import FORMATS, parse, parts

from trtllm_truss.tool_calls.catalog import TOOL_FORMATS
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.tool_format import call_schema, write_call

WITHOUT_JSON = {"pythonic", "deepseek_v32", "minimax_m2", "minimax_m3", "gemma4", "olmo3"}
WEATHER = [TOOLS[0]]
ARGUMENTS = {"city": "Oslo", "days": 2}


@pytest.mark.parametrize("name", sorted(set(TOOL_FORMATS) - WITHOUT_JSON))
def test_what_a_guide_forces_is_read_as_a_call(name: str) -> None:
    [guide] = TOOL_FORMATS[name].guides(WEATHER, parallel=False)
    written = write_call(guide, "get_weather", json.dumps(ARGUMENTS))
    json.loads(written[len(guide.prefix) : len(written) - len(guide.suffix)])
    for output in (written, written.removesuffix(guide.suffix)):
        for pieces in ([output], [guide.prefix, output.removeprefix(guide.prefix)], [*output]):
            assert parts(parse(pieces, name)) == [Call("get_weather", ARGUMENTS)]


@pytest.mark.parametrize("name", sorted(set(TOOL_FORMATS) - WITHOUT_JSON))
def test_guides_offer_every_function(name: str) -> None:
    guides = TOOL_FORMATS[name].guides(TOOLS, parallel=True)
    text = json.dumps(guides, ensure_ascii=False)
    assert all(tool.name in text for tool in TOOLS)
    assert len(guides) in (1, len(TOOLS))


@pytest.mark.parametrize("name", sorted(WITHOUT_JSON))
def test_formats_without_json_have_no_guide(name: str) -> None:
    assert TOOL_FORMATS[name].guides(TOOLS, parallel=True) == []


def test_the_schema_of_a_call() -> None:
    assert call_schema([*WEATHER, Tool("get_time", {})], keys=("name", "parameters")) == {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": "get_weather"},
                    "parameters": WEATHER[0].parameters,
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {
                    "name": {"const": "get_time"},
                    "parameters": {
                        "type": "object",
                        "properties": {},
                        "additionalProperties": False,
                    },
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            },
        ]
    }


def test_several_calls_are_an_array() -> None:
    call = call_schema(WEATHER)
    assert call_schema(WEATHER, parallel=True) == {"type": "array", "items": call, "minItems": 1}
    assert call_schema(WEATHER, parallel=False)["maxItems"] == 1


def test_references_lead_into_the_definitions_of_their_function() -> None:
    node = {
        "properties": {"next": {"$ref": "#/$defs/Node"}, "all": {"$ref": "#"}},
        "required": ["next"],
    }
    schema = call_schema(
        [Tool("a", {"$defs": {"Node": node}, "$ref": "#/$defs/Node"}), Tool("b", {})]
    )
    assert schema["anyOf"][0]["properties"]["arguments"] == {"$ref": "#/$defs/tool0"}
    assert schema["$defs"] == {
        "tool0": {
            "type": "object",
            "$defs": {
                "Node": {
                    "properties": {
                        "next": {"$ref": "#/$defs/tool0/$defs/Node"},
                        "all": {"$ref": "#/$defs/tool0"},
                    },
                    "required": ["next"],
                }
            },
            "$ref": "#/$defs/tool0/$defs/Node",
        }
    }


def test_schemas_keep_their_order_and_other_references() -> None:
    parameters = {"type": "object", "properties": {"z": {"$ref": "other.json"}, "a": {"enum": [1]}}}
    schema = call_schema([Tool("f", parameters)])
    assert json.dumps(schema["properties"]["arguments"]) == json.dumps(parameters)


def test_deep_schemas_need_no_recursion() -> None:
    schema: dict[str, Any] = {"$ref": "#"}
    for _ in range(5000):
        schema = {"items": schema}
    assert call_schema([Tool("f", schema)])["$defs"]


@pytest.mark.parametrize("name", FORMATS)
def test_markers_are_named_as_special_tokens(name: str) -> None:
    markers = getattr(TOOL_FORMATS[name], "markers", ())
    assert set(markers) <= TOOL_FORMATS[name].special_tokens
