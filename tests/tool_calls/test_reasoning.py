from __future__ import annotations

import random

import pytest
from tests.tool_calls.outputs.notation import Call, Think
from tests.tool_calls.parsing import Part, parse, parts
from tests.tool_calls.test_cuts import cut_at_random

from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.events import ParsedText, ReasoningDelta
from trtllm_truss.tool_calls.parser import OutputParser

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
    ("qwen3", "<think>a</think>b</think>c", [Think("a"), "bc"]),
    ("qwen3", "<think><think>a</think>b", [Think("a"), "b"]),
    # An answer that only closes reasoning.
    ("qwen3", "</think>\n\nFour.", ["Four."]),
    ("qwen3", "\n</think>Four.", ["Four."]),
    ("qwen3", "It adds up.</think>Four.", ["It adds up.Four."]),
    (
        "qwen3",
        'Use `x.split("</think>")` or `</think>`.',
        ['Use `x.split("</think>")` or `</think>`.'],
    ),
    # Calls inside of reasoning that does not end.
    ("qwen3", f"<think>Look.\n{CALL}", [Think("Look."), Call("get_time", {})]),
    ("qwen3", f"<think>{CALL}\n{CALL}\n", [Call("get_time", {}), Call("get_time", {})]),
    (
        "qwen3",
        f"<think>Write {CALL}? No.\n{CALL}",
        [Think(f"Write {CALL}? No."), Call("get_time", {})],
    ),
    ("qwen3", f"<think>Write {CALL}? No.", [Think(f"Write {CALL}? No.")]),
    ("qwen3", f"<think>Write {CALL[:-20]}", [Think(f"Write {CALL[:-20]}")]),
    ("qwen3", "<think>Write <tool_call>? No.", [Think("Write <tool_call>? No.")]),
    # Tags around the text.
    ("qwen3", "<think>a</think><response>b</response>", [Think("a"), "b"]),
    ("qwen3", "<think>a</think>\n<response>\nb\n</response>\n", [Think("a"), "b"]),
    ("qwen3", "<response>b</response>", ["b"]),
    ("qwen3", "<think>a</think><response>b </response> c", [Think("a"), "b </response> c"]),
    ("qwen3", "<think>a</think>b <response>c</response>", [Think("a"), "b <response>c</response>"]),
    (
        "qwen3",
        f"<think>a</think><response>b</response>{CALL}",
        [Think("a"), "b", Call("get_time", {})],
    ),
    ("hunyuan", "<think>\na\n</think>\n<answer>\nb\n</answer>", [Think("a"), "b"]),
    (
        "apriel",
        "Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\nb\n[END FINAL RESPONSE]",
        [Think("a"), "b"],
    ),
    ("minimax_m3", "<mm:think>a</mm:think>b", [Think("a"), "b"]),
    ("minimax_m3", "</mm:think>b", ["b"]),
    ("gemma4", "<|channel>thought\na\n<channel|>b", [Think("a"), "b"]),
    (
        "gemma4",
        "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d",
        [Think("a"), "b", Think("\nc"), "d"],
    ),
    (
        "command_r7b",
        "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
        [Think("a"), "b"],
    ),
    ("apertus", "<|inner_prefix|>a<|inner_suffix|>b", [Think("a"), "b"]),
    (
        "kimi_k3",
        "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>"
        "<|close|>message<|sep|><|end_of_msg|>",
        [Think("a"), "b"],
    ),
    (
        "inkling",
        "<|content_thinking|>a<|end_message|><|message_model|><|content_text|>b<|end_message|>"
        "<|content_model_end_sampling|>",
        [Think("a"), "b"],
    ),
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
    assert parts(parse([output], None, "harmony")) == ["functions.get_time {}"]


def test_a_reasoning_of_spaces_is_bounded() -> None:
    [reasoning] = parse(["<think>a", " " * 5000, "</think>"], None, "qwen3")
    assert reasoning == ReasoningDelta("a" + " " * (5000 - 1024))
