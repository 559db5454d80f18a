"""However an output is split into chunks, its parts are the same.

`TOOL_CALL_CUTS` sets how many random cuts of each format are tried; the default is for every day.
"""

from __future__ import annotations

import os
import random

import pytest
from tests.tool_calls import fuzz
from tests.tool_calls.parsing import FORMATS, cases, parse, parts

from trtllm_truss.tool_calls.catalog import TOOL_FORMATS

CUTS = int(os.environ.get("TOOL_CALL_CUTS", "100"))
FRAGMENTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "functools",
        "[TOOL_CALLS]",
    ),
    *("[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[", "]", "{"),
    *(
        "<function=get_weather>",
        "<function=",
        "</function>",
        "<parameter=city>",
        "</parameter>",
        "}",
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```json",
    ),
    *("<｜tool▁calls▁end｜>", "<|channel|>", "commentary", " to=functions.get_time", "<|message|>"),
    *("<|start|>", "analysis", "final", "<|call|>", "<|end|>", "get_time", "get_weather", "(", ")"),
    *('"name"', '"get_weather"', '"arguments"', '"parameters"', ": ", ", ", '"city": "Oslo"', "\\"),
    *("city=", "'x'", '"', "'", "1", "-", "true", "None", "\n", " ", "<", "<|", "é😀", "text", ";"),
    *('{"name": "get_time", "arguments": {}}', '{"name": "get_weather", "arguments": {"city": '),
    *(
        "<think>",
        "</think>",
        "<parameter=days>",
        "5",
        '"""',
        "function",
        "[]",
        "{}",
        "null",
        "\\u12",
    ),
]


def cut_at_random(text: str, randomness: random.Random) -> list[str]:
    longest = randomness.choice([2, 8, 40, 200])
    at, pieces = 0, []
    while at < len(text):
        end = at + randomness.randint(0, longest)
        pieces.append(text[at:end])
        at = end
    return pieces


def spoiled(texts: list[str], randomness: random.Random) -> str:
    """Parts of outputs and fragments, put together."""
    pieces = []
    for _ in range(randomness.randint(1, 6)):
        text = randomness.choice(texts)
        begin = randomness.randint(0, len(text)) * randomness.randint(0, 1)
        pieces.append(text[begin : randomness.randint(begin, len(text))])
        pieces += randomness.choices(FRAGMENTS, k=randomness.randint(0, 3))
    return "".join(pieces)


@pytest.mark.parametrize("name", FORMATS)
def test_random_cuts_change_nothing(name: str) -> None:
    randomness = random.Random(name)
    known = [(case.output, parse([case.output], name)) for case in cases(name)]
    for number in range(CUTS):
        output, events = known[number % len(known)]
        pieces = cut_at_random(output, randomness)
        assert parse(pieces, name) == events, pieces


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_of_equal_length_change_nothing(name: str) -> None:
    for case in cases(name):
        whole = parse([case.output], name)
        for size in (1, 2, 3, 5, 7, 11):
            ends = range(0, len(case.output), size)
            assert parse([case.output[at : at + size] for at in ends], name) == whole


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_outputs_keep_the_rules(name: str) -> None:
    """A short run of `fuzz`; see there."""
    randomness = random.Random(name)
    for _, (reasoning, output) in zip(range(CUTS), fuzz.outputs(name, randomness), strict=False):
        fuzz.check(name, reasoning, output, randomness)


@pytest.mark.parametrize("name", [*FORMATS, "json"])
def test_cuts_of_spoiled_outputs_change_nothing(name: str) -> None:
    randomness = random.Random(name)
    texts = [case.output for case in cases("hermes" if name == "json" else name)]
    for _ in range(CUTS // 4):
        output = spoiled(texts, randomness)
        reasoning = randomness.choice([None, None, "qwen3", "harmony"])
        events = parse([output], name, reasoning)
        parts(events)
        pieces = cut_at_random(output, randomness)
        assert parse(pieces, name, reasoning) == events, pieces


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "harmony"])
def test_all_but_control_words_is_text_if_nothing_is_offered(name: str) -> None:
    randomness = random.Random(name)
    texts = [case.output for case in cases(name)]
    for _ in range(CUTS // 10):
        output = spoiled(texts, randomness)
        pieces = cut_at_random(output, randomness)
        [text] = parts(parse(pieces, name, offered=[])) or [""]
        assert isinstance(text, str)
        dropped = TOOL_FORMATS[name].dropped
        assert not any(word in text for word in dropped)
        if not any(word in output for word in dropped):
            assert text == output


@pytest.mark.parametrize("name", FORMATS)
def test_every_beginning_of_an_output_parses(name: str) -> None:
    for case in cases(name)[::7]:
        for end in range(len(case.output)):
            parts(parse([case.output[:end]], name))


@pytest.mark.parametrize("name", FORMATS)
def test_calls_in_a_row_are_read_alike_whole_and_in_pieces(name: str) -> None:
    """Whole ones are read several at a time."""
    randomness = random.Random(name)
    texts, words = [case.output for case in cases(name)], fuzz.fragments(name)
    gaps = ["\n", "", " \n", "\n\n", "}", '"', ",", " " * 1030, "text", "{", "[", *words]
    for _ in range(CUTS // 2):
        often = randomness.choices(texts[:12], k=randomness.randint(2, 5))
        gap = randomness.choices(gaps[:4] * 9 + gaps, k=len(often))
        output = "".join(text + between for text, between in zip(often, gap, strict=True))
        for reasoning in (None, *fuzz.REASONING.get(name, ["qwen3"])):
            fuzz.check(name, reasoning, output + randomness.choice(texts), randomness)


def test_each_rest_of_a_word_around_a_call_is_dropped_in_pieces_too() -> None:
    output = '<tool_call>{"name"}</tool_call<tool_call>{"name": "get_time"}</tool_call>>>\nWell.'
    whole = parse([output], "hermes")
    assert parse([*output], "hermes") == whole
