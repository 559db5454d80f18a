"""Outputs designed to be expensive: the work grows linearly, the held text does not grow."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from tests.tool_calls.outputs.notation import TOOLS, Call, Cut
from tests.tool_calls.parsing import FORMATS, parse, parts

from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.events import ArgumentsDelta, CallStarted, ParsedText, Tool
from trtllm_truss.tool_calls.parser import OutputParser
from trtllm_truss.tool_calls.source import MAX_HELD, Source
from trtllm_truss.tool_calls.values import MAX_DEPTH

EACH_NOTATION = {"glm45", "harmony", "hermes", "mistral", "pythonic", "qwen3_coder"}
"""One format of each notation of calls: tags, channels, objects, names, expressions, XML."""

MAX_UNREAD = 2048
PART = 1100
BEGINNINGS = {
    "hermes": '<tool_call>{"name": "search", "arguments": {"filters": ',
    "qwen3_coder": "<tool_call><function=search><parameter=filters>",
    "glm45": "<tool_call>search<arg_key>filters</arg_key><arg_value>",
    "telechat4": "<tool_call>search<param_key>filters</param_key><param_value>",
    "hunyuan": "<tool_calls><tool_call>search<tool_sep><arg_key>filters</arg_key><arg_value>",
    "minimax_m2": '<minimax:tool_call><invoke name="search"><parameter name="filters">',
    "minimax_m3": ']<]minimax[>[<invoke name="search">]<]minimax[>[<filters>',
    "deepseek_v32": '<｜DSML｜invoke name="search"><｜DSML｜parameter name="filters">',
    "kimi_k3": '<|open|>call tool="search"<|sep|><|open|>argument key="filters"<|sep|>',
    "kimi_k2": "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{",
    "llama3_json": '{"name": "search", "parameters": {"filters": ',
    "pythonic": "[search(filters=",
    "lfm2": "<|tool_call_start|>[search(filters=",
    "olmo3": "<function_calls>search(filters=",
    "mistral": "[TOOL_CALLS]search[ARGS]{",
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{",
    "deepseek_v31": "<｜tool▁call▁begin｜>search<｜tool▁sep｜>{",
    "harmony": "<|channel|>commentary to=functions.search<|message|>{",
    "granite": '<|tool_call|>[{"arguments": {"filters": ',
    "phi4_mini": 'functools[{"name": "search", "arguments": {"filters": ',
    "nemotron": '<TOOLCALL>[{"name": "search", "arguments": {"filters": ',
    "apriel": '<tool_calls>[{"name": "search", "arguments": {"filters": ',
    "command_r7b": '<|START_ACTION|>[{"tool_name": "search", "parameters": {"filters": ',
    "apertus": '<|tools_prefix|>[{"search": {"filters": ',
    "gemma4": "<|tool_call>call:search{filters:",
    "inkling": '<|content_invoke_tool_json|>{"name": "search", "args": {"filters": ',
}
REPEATED = [
    *("[", "{", '{"a":', "(", "<", "\n", "  ", '"', "\\", "9", "a", "{\n", "[\n", "<think>"),
    *("</think>", "get_time(", '{"arguments":', '{"name": "get_time", "parameters": {'),
]


def work(name: str, begin: str, unit: str, step: int) -> list[int]:
    """Count the calls of Python functions that parsing takes, in each of four equal parts."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    parser = OutputParser(TOOL_FORMATS[name], REASONING_FORMATS["qwen3"], TOOLS)
    output = (unit * (PART // len(unit) + 1))[:PART]
    counts = []
    sys.setprofile(count)
    try:
        parser.feed(begin)
        for _ in range(4):
            before = calls
            for at in range(0, PART, step):
                parser.feed(output[at : at + step])
                assert len(parser._source._text) - parser._source._at <= MAX_UNREAD
            counts.append(calls - before)
    finally:
        sys.setprofile(None)
    return counts


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in EACH_NOTATION else pytest.mark.thorough)
        for name in FORMATS
    ],
)
def test_work_is_linear(name: str) -> None:
    """Limits of names, numbers and leftovers lie in the first part."""
    for begin in ("", BEGINNINGS[name]):
        for repeated in (*REPEATED, *sorted(TOOL_FORMATS[name].special_tokens)):
            _, second, third, fourth = work(name, begin, repeated, 7)
            assert fourth <= 1.2 * max(second, third) + 100, (begin, repeated)


class Values(list[Any]):
    """An `enum` that counts how often it is looked through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        Values.times += 1
        return super().__iter__()


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_is_looked_through_once(name: str) -> None:
    """An `enum` of 200,000 values took 8 ms for each argument of each answer."""
    long = {"enum": Values([1, 2, 3])}
    properties = {f"p{n}": {"$ref": "#/$defs/long"} for n in range(50)}
    offered = [Tool("f", {"properties": properties, "$defs": {"long": long}})]
    arguments = "".join(f"<parameter={key}>\n1\n</parameter>\n" for key in properties)
    Values.times = 0
    for _ in range(3):
        parser = OutputParser(TOOL_FORMATS[name], None, offered)
        events = parser.feed(f"<tool_call>\n<function=f>\n{arguments}</function>\n</tool_call>")
        if name == "qwen3_coder":
            [_, delta, _] = [*events, *parser.finish()]
            assert isinstance(delta, ArgumentsDelta)
            assert delta.json == json.dumps(dict.fromkeys(properties, 1))
    assert Values.times <= 1


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_lost_of_nested_bombs(name: str) -> None:
    for bomb in ("[" * 100_000, '{"a":' * 20_000):
        found = parts(parse([BEGINNINGS[name] + bomb], name))
        assert not any(isinstance(part, Call) for part in found)
        text = "".join(part.json if isinstance(part, Cut) else str(part) for part in found)
        assert text.replace(" ", "").endswith(bomb[-50_000:])


def test_putting_text_back_copies_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each header of gpt-oss without a message copied all text behind it: 4.6 s for a megabyte."""
    copied = 0

    class CountedSource(Source):
        def unread(self, text: str) -> None:
            nonlocal copied
            copied += len(text) + len(self._text) - self._at
            super().unread(text)

    monkeypatch.setattr("trtllm_truss.tool_calls.parser.Source", CountedSource)
    counts = []
    for length in (1 << 17, 1 << 18):
        copied = 0
        parse([("<|channel|> " * length)[:length]], "harmony", "harmony")
        counts.append(copied)
    assert 0 < counts[1] <= 2.2 * counts[0]


UNUSUAL_JSON = [
    '{"a": NaN}',
    '{"a": -Infinity}',
    f'{{"a": {"9" * 1025}}}',
    f'{{"a": 0.{"9" * 1023}}}',
    '{"a": "\n"}',
    '{"a": 01}',
    '{"a": [1, 2}',
    '{"a": 1,}',
    '{"a": "\\x"}',
    f'{{"a": {"[" * MAX_DEPTH}{"]" * MAX_DEPTH}}}',
    f'{{"a": [{"[], " * MAX_DEPTH}1]}}',
]


@pytest.mark.parametrize("arguments", UNUSUAL_JSON)
def test_json_that_has_arrived_whole_reads_as_in_pieces(arguments: str) -> None:
    output = f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>'
    assert parse([output], "hermes") == parse(output, "hermes")


@pytest.mark.parametrize(
    "arguments",
    ["a=01", "a=1.", "a=1 b=2", "a=1,,", "a=1,", "a = 'x' , b=None", f"a={'9' * 302}", "a=nul"],
)
def test_python_that_has_arrived_whole_reads_as_in_pieces(arguments: str) -> None:
    output = f"[search({arguments})]"
    assert parse([output], "pythonic") == parse(output, "pythonic")


def test_calls_of_the_greatest_depth_are_read() -> None:
    deep = '{"a": ' * (MAX_DEPTH - 1) + "{}" + "}" * (MAX_DEPTH - 1)
    call = '<tool_call>{{"name": "search", "arguments": {}}}</tool_call>'
    [found] = parts(parse([call.format(deep)], "hermes"))
    assert isinstance(found, Call)
    found, *_ = parts(parse([call.format(f'{{"a": {deep}}}')], "hermes"))
    assert isinstance(found, Cut)


def stream(name: str, begin: str, unit: str, length: int, end: str) -> tuple[int, list[object]]:
    """Feed a long output, and return the peak of memory and the kinds of events."""
    parser = OutputParser(TOOL_FORMATS[name], None, TOOLS)
    kinds: list[object] = []
    tracemalloc.start()
    try:
        for piece in [begin, *[unit] * (length // len(unit)), end]:
            for event in parser.feed(piece):
                if not kinds or kinds[-1] is not type(event):
                    kinds.append(type(event))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak, kinds


MEGABYTE_CALLS: dict[str, tuple[str, str]] = {
    "glm45": ("<tool_call>write_file<arg_key>content</arg_key><arg_value>", "</arg_value>"),
    "gemma4": ('<|tool_call>call:write_file{content:<|"|>', '<|"|>}<tool_call|>'),
    "kimi_k2": ('<|tool_call_begin|>write_file<|tool_call_argument_begin|>{"content": "', '"}'),
    "hermes": ('<tool_call>{"name": "write_file", "arguments": {"content": "', '"}}</tool_call>'),
    "qwen3_coder": ("<function=write_file><parameter=content>", "</parameter></function>"),
    "pythonic": ('[write_file(content="', '")]'),
    "harmony": ('<|channel|>commentary to=write_file<|message|>{"content": "', '"}<|call|>'),
}


@pytest.mark.parametrize("name", MEGABYTE_CALLS)
def test_a_megabyte_of_arguments_streams_in_little_memory(name: str) -> None:
    begin, end = MEGABYTE_CALLS[name]
    peak, kinds = stream(name, begin, "0123456789 abcdef < " * 50 + "\\n", 1 << 20, end)
    assert peak < 1 << 19
    assert kinds[:2] == [CallStarted, ArgumentsDelta]


@pytest.mark.parametrize(
    "begin",
    [
        '<tool_call>{"arguments": {"content": "',
        '<tool_call>{"name": "',
        '<tool_call>{"name": "write_file", "id": "',
        "<tool_call>",
    ],
)
def test_a_megabyte_that_is_no_call_yet_becomes_text(begin: str) -> None:
    unit = " " * 1000
    peak, kinds = stream("hermes", begin, unit, 1 << 20, "")
    assert peak < 8 * MAX_HELD
    assert kinds == [ParsedText]


@pytest.mark.parametrize("size", [MAX_HELD - 100, MAX_HELD, MAX_HELD + 100])
def test_the_limit_of_held_text_does_not_depend_on_cuts(size: int) -> None:
    output = (
        '<tool_call>{"arguments": {"content": "' + "x" * size + '<tool_call>{\\"name\\": '
        '\\"get_time\\"}"}, "name": "write_file"}</tool_call>'
        '<tool_call>{"name": "get_time"}</tool_call>'
    )
    whole = parse([output], "hermes")
    for step in (7, 1000):
        assert (
            parse([output[at : at + step] for at in range(0, len(output), step)], "hermes") == whole
        )


def test_an_overlong_header_does_not_depend_on_cuts() -> None:
    output = "<|channel|>" + "commentary " * 60 + "<|channel|>final<|message|>Hello."
    assert parse(output, "harmony") == parse([output], "harmony")


HOSTILE_SCHEMAS: list[dict[str, object]] = [
    {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"properties": {"a": {"$ref": "#"}}},
    {"properties": {"a": {"$ref": 5, "type": [{}, None, 3]}}},
    {"properties": {"a": {"anyOf": "x", "enum": {"b": 1}}}},
    {"properties": {"a": {"anyOf": [{"anyOf": []}] * 500}}},
    {"properties": ["a"]},
    {"properties": {"a": True}},
]


@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS)
def test_schemas_that_make_no_sense_mean_text(schema: dict[str, object]) -> None:
    output = "<function=f><parameter=a>5</parameter></function>"
    offered = [Tool("f", schema)]
    assert parts(parse([output], "qwen3_coder", offered=offered)) == [Call("f", {"a": "5"})]
