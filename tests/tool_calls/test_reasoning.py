from __future__ import annotations

import random

import pytest
from tests.tool_calls.outputs.notation import Call, Think
from tests.tool_calls.parsing import Part, parse, parts
from tests.tool_calls.test_cuts import cut_at_random

from trtllm_truss.tool_calls.events import ParsedText, ReasoningDelta
from trtllm_truss.tool_calls.parser import REASONING_FORMATS, TOOL_FORMATS, OutputParser

CALL = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
OUTPUTS: list[tuple[str, str, list[Part]]] = [
    ("qwen3", "<think>\nSimple.\n</think>\n\nFour.", [Think("Simple."), "Four."]),
    ("qwen3", f"<think>Look.</think>\n{CALL}", [Think("Look."), Call("get_time", {})]),
    ("qwen3", "<think>\n\n</think>\n\nFour.", ["Four."]),
    ("qwen3", "<think></think>Four.", ["Four."]),
    ("qwen3", "\n<think>a</think>b", [Think("a"), "b"]),
    ("qwen3", "<think>First.\n\n  Second.", [Think("First.\n\n  Second.")]),
    ("qwen3", "No reasoning.", ["No reasoning."]),
    ("qwen3", "  \n", ["  \n"]),
    ("qwen3", "A <think>tag</think> in text.", ["A <think>tag</think> in text."]),
    ("qwen3", f"<think>Write {CALL}?</think>No.", [Think(f"Write {CALL}?"), "No."]),
    ("qwen3", "<think>a</thin b</think>c", [Think("a</thin b"), "c"]),
    ("qwen3", "<think>a</think>b</think>c", [Think("a"), "b</think>c"]),
    ("qwen3", "<thin", ["<thin"]),
    ("deepseek_r1", "<think>\n好的。\n</think>\n\n四。", [Think("好的。"), "四。"]),
    (
        "granite",
        "Here is my thought process:\nIt adds up.\n\nHere is my response:\n\nFour.",
        [Think("It adds up."), "Four."],
    ),
    ("granite", "Here's my thought process: a Here's my response: b", [Think("a"), "b"]),
    ("granite", "Here is my house.", ["Here is my house."]),
    ("mistral", "[THINK]Hm [1].[/THINK]Four.", [Think("Hm [1]."), "Four."]),
    ("seed_oss", "<seed:think>Hm.</seed:think>\nFour.", [Think("Hm."), "Four."]),
    ("reasoning_tags", "<reasoning>Hm.</reasoning>Four.", [Think("Hm."), "Four."]),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
        [Think("Hm."), "Four."],
    ),
]


@pytest.mark.parametrize(("name", "output", "expected"), OUTPUTS)
def test_reasoning_is_told_from_text(name: str, output: str, expected: list[Part]) -> None:
    assert parts(parse([output], "hermes", name)) == expected
    randomness = random.Random(output)
    for _ in range(20):
        assert parts(parse(cut_at_random(output, randomness), "hermes", name)) == expected


def test_reasoning_and_text_stream() -> None:
    parser = OutputParser(TOOL_FORMATS["hermes"], REASONING_FORMATS["qwen3"], ())
    assert parser.feed("<think>") == []
    assert parser.feed("One ") == [ReasoningDelta("One")]
    assert parser.feed("two</") == [ReasoningDelta(" two")]
    assert parser.feed("think>\n") == []
    assert parser.feed("Three <") == [ParsedText("Three ")]
    assert parser.feed("b>") == [ParsedText("<b>")]
    assert parser.finish() == []


def test_without_formats_all_is_text() -> None:
    output = f"\n<think>a</think> {CALL}"
    assert parts(parse(output, None)) == [output]


def test_a_harmony_answer_without_tools_has_no_calls() -> None:
    output = "<|channel|>commentary to=functions.get_time json<|message|>{}<|call|>"
    assert parts(parse([output], None, "harmony")) == [output]


def test_a_reasoning_of_spaces_is_bounded() -> None:
    [reasoning] = parse(["<think>a", " " * 5000, "</think>"], None, "qwen3")
    assert reasoning == ReasoningDelta("a" + " " * (5000 - 1024))
