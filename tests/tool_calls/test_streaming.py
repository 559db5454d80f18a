"""The events completed by each chunk of an output."""

from __future__ import annotations

import pytest
from tests.tool_calls.outputs.notation import TOOLS

from trtllm_truss.tool_calls.catalog import TOOL_FORMATS
from trtllm_truss.tool_calls.events import ArgumentsDelta, CallEnded, CallStarted, Event, ParsedText
from trtllm_truss.tool_calls.parser import OutputParser

Steps = list[tuple[str, list[Event]]]
STEPS: dict[str, Steps] = {
    "hermes": [
        ("Sure. <", [ParsedText("Sure. ")]),
        ("tool_call", []),
        (">\n{", []),
        ('"name": "get_weather", "arguments"', []),
        (': {"ci', [CallStarted(0, "get_weather"), ArgumentsDelta(0, '{"ci')]),
        ('ty": "Pa', [ArgumentsDelta(0, 'ty": "Pa')]),
        ('ris"}', [ArgumentsDelta(0, 'ris"}'), CallEnded(0, True)]),
        ("}\n</tool_", []),
        ("call>\nBye", [ParsedText("\nBye")]),
    ],
    "qwen3_coder": [
        ("<function=write_file>\n<parameter=content", []),
        (">", [CallStarted(0, "write_file"), ArgumentsDelta(0, '{"content": ')]),
        ('\nx = "1', [ArgumentsDelta(0, '"x = \\"1')]),
        ("\n<", []),
        ("/p>\n", [ArgumentsDelta(0, "\\n</p>")]),
        ("</parameter>", [ArgumentsDelta(0, '"')]),
        ("</function>", [ArgumentsDelta(0, "}"), CallEnded(0, True)]),
    ],
    "pythonic": [
        ("[get_weather(city", []),
        ("=", []),
        ("'Pa", [CallStarted(0, "get_weather"), ArgumentsDelta(0, '{"city": "Pa')]),
        ("ris', days=1", [ArgumentsDelta(0, 'ris"')]),
        ("2)", [ArgumentsDelta(0, ', "days": 12}'), CallEnded(0, True)]),
        ("]", []),
    ],
    "llama3_json": [
        ("{", []),
        ('"city', []),
        ('": 1', [ParsedText('{"city": 1')]),
        ("}", [ParsedText("}")]),
    ],
    "mistral": [
        ("[TOOL_CALLS]get_ti", []),
        ("me[ARGS]", []),
        ("{", [CallStarted(0, "get_time"), ArgumentsDelta(0, "{")]),
        ("}", [ArgumentsDelta(0, "}"), CallEnded(0, True)]),
    ],
}


@pytest.mark.parametrize("name", STEPS)
def test_events_come_as_early_as_they_are_certain(name: str) -> None:
    parser = OutputParser(TOOL_FORMATS[name], None, TOOLS)
    for piece, events in STEPS[name]:
        assert parser.feed(piece) == events
    assert parser.finish() == []


def test_any_name_is_taken_if_no_tools_are_given() -> None:
    parser = OutputParser(TOOL_FORMATS["hermes"])
    events = parser.feed('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert events[0] == CallStarted(0, "f")
