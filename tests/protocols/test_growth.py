"""The work on long conversations and lists of tools grows with their length, not faster."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from trtllm_truss.conversation.form import Form
from trtllm_truss.conversation.writing import write
from trtllm_truss.protocols.messages.body import parse_messages
from trtllm_truss.protocols.openai.tools import read_flat_tool_use, read_tool_use
from trtllm_truss.protocols.responses.body import parse_response

TEXT = "a" * 1_000_000
REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": TEXT}]}
ITEMS = 8


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_response, {"input": [{"role": "assistant", "content": TEXT}] * ITEMS}),
        (parse_response, {"input": [REASONING] * ITEMS}),
        (
            parse_messages,
            {"max_tokens": 1, "messages": [{"role": "user", "content": TEXT}] * ITEMS},
        ),
    ],
)
def test_adjacent_texts_are_joined_once(parse: Callable[..., Any], body: dict[str, Any]) -> None:
    """Appended one by one, the last two results would be in memory together."""
    peak_bytes = peak_of(lambda: parse(body, {}))
    assert ITEMS * len(TEXT) <= peak_bytes < 1.5 * ITEMS * len(TEXT)


@pytest.mark.parametrize("role", ["tool", "user", "system"])
def test_texts_are_joined_once_for_a_template(role: str) -> None:
    turns = [{"role": "user", "content": "a"}, *[{"role": role, "content": TEXT}] * ITEMS]
    form = Form(calls="text", results="user", joins=True, system="first", orphans="user")
    peak_bytes = peak_of(lambda: write(turns, None, form))
    assert ITEMS * len(TEXT) <= peak_bytes < 2.5 * ITEMS * len(TEXT)


def peak_of(work: Callable[[], object]) -> int:
    """Return the bytes of memory that a work takes, the second time."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Name(str):
    """Counts comparisons, which a lookup by hash hardly needs."""

    __slots__ = ()
    __hash__ = str.__hash__
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return str.__eq__(self, other)


def test_allowed_tools_are_looked_up_by_name() -> None:
    count = 200
    names = [Name(f"f{number}") for number in range(count)]
    tools = [{"type": "function", "name": name} for name in names]
    allowed = [{"type": "function", "name": Name(name)} for name in names]
    choice = {"type": "allowed_tools", "tools": allowed}
    Name.comparisons = 0
    use, _ = read_flat_tool_use(tools, choice, parallel=True)
    assert [tool.name for tool in use.offered] == names
    nested = [{"type": "function", "function": tool} for tool in tools]
    choice = {"type": "allowed_tools", "allowed_tools": {"tools": nested}}
    assert read_tool_use(nested, choice, parallel=True).offered == use.offered
    assert Name.comparisons < 20 * count


def _turns(ids: list[str], results: list[str]) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": {}}
    calls = [{"id": id_, "type": "function", "function": function} for id_ in ids]
    answers = [{"role": "tool", "tool_call_id": id_, "content": "x"} for id_ in results]
    return [{"role": "assistant", "tool_calls": calls}, *answers]


NAMES = [f"c{number}" for number in range(200)]


@pytest.mark.parametrize(
    ("calls", "results", "written_results"),
    [(NAMES, [*reversed(NAMES)], NAMES), (["a", "b"], ["a"] * 200, ["a"] * 200)],
)
def test_results_are_matched_with_calls_by_hash(
    calls: list[str], results: list[str], written_results: list[str]
) -> None:
    turns = _turns([*map(Name, calls)], [*map(Name, results)])
    Name.comparisons = 0
    written = write(turns, None, Form(one_call=True))
    found = [turn["tool_call_id"] for turn in written.messages if turn["role"] == "tool"]
    assert found == written_results
    assert Name.comparisons < 20 * len(results)
