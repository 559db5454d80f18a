"""Schemas that need a short trial only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from trtllm_truss.guides import compiler_worker
from trtllm_truss.guides.plain_schemas import is_plain
from trtllm_truss.requests import Guide

NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
}
TOOL = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Its name.", "default": "Oslo"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
        "node": {"$ref": "#/$defs/node"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"node": NODE},
}
CALL = {"type": "object", "properties": {"name": {"const": "f"}}, "required": ["name"]}
HALVES = {"anyOf": [{"type": "string"}, {"enum": ["a"]}]}


@pytest.mark.parametrize("schema", [TOOL, True, {}, {"type": "object"}, {"anyOf": [CALL, CALL]}])
def test_schemas_of_tools_are_plain(schema: Any) -> None:
    assert is_plain(schema)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string", "pattern": "(a|a)*"},
        {"type": "string", "maxLength": 9},
        {"type": "string", "format": "email"},
        {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "patternProperties": {"^a": {}}},
        {"type": "object", "properties": {"a": {}}, "minProperties": 1},
        {"type": ["integer", "number"]},
        {"anyOf": [{"type": "array"}, {"type": "array", "items": {"type": "string"}}]},
        {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        {"anyOf": [{}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"allOf": [{"type": "string"}]},
        {"$ref": "#"},
        {"$ref": "#/properties/part"},
        {"$ref": "#/$defs/node", "type": "object"},
    ],
    ids=json.dumps,
)
def test_a_part_that_can_be_ambiguous_is_not_plain(part: Any) -> None:
    whole = {"type": "object", "properties": {"part": part}, "$defs": {"node": NODE}}
    assert not is_plain(whole)
    assert not is_plain({"$defs": {"part": part}})
    assert not is_plain({"anyOf": [CALL, part]})


def test_choices_of_one_type_are_plain_at_the_root_only() -> None:
    assert is_plain(HALVES)
    assert not is_plain({"type": "array", "items": HALVES})
    assert not is_plain({"anyOf": [CALL] * 65})


class Follower:
    """Draws tokens, the first one after so much CPU time."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.drawn: list[int] = []

    def __call__(self, guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
        self.drawn.append(tokens)
        end_s = time.thread_time() + self.begin_s
        while time.thread_time() < end_s:
            pass
        for _ in range(tokens):
            on_token()


@pytest.fixture(autouse=True)
def _no_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_worker, "_limit_memory", lambda: None)


def drawn(
    schema: Any, *, fixes_blanks: bool = True, begin_s: float = 0, trusted: bool = False
) -> list[int]:
    follow = Follower(begin_s)
    guide = Guide("json_schema", json.dumps(schema), fixes_blanks=fixes_blanks)
    trial = compiler_worker._attempt(guide, follow, brackets_only=True, trusts_plain=trusted)
    assert trial.fault is None
    assert trial.grammar
    if not follow.drawn:  # nothing was measured
        assert trial.kept_bytes > 100 * len(trial.grammar)
    return follow.drawn


def test_a_plain_schema_draws_few_tokens() -> None:
    assert drawn(TOOL) == [1, 8]
    assert drawn(TOOL, fixes_blanks=False) == [1, 100]
    assert drawn({"type": "string", "pattern": "a*"}) == [1, 100]


def test_a_plain_schema_of_slow_tokens_is_tried_like_others() -> None:
    assert drawn(TOOL, begin_s=0.03) == [1, 8, 100]


def test_an_engine_that_compiles_beside_requests_need_not_wait_for_a_short_plain_schema() -> None:
    assert drawn(TOOL, trusted=True) == []
    assert drawn(TOOL, trusted=True, fixes_blanks=False) == [1, 100]
    assert drawn({"type": "string", "pattern": "a*"}, trusted=True) == [1, 100]
    assert drawn({"enum": ["Malmö"]}, trusted=True) == [1, 8]
    assert drawn({"enum": ["a" * 4096]}, trusted=True) == [1, 8]


def test_a_fault_of_a_plain_schema_is_found_without_compiling_it() -> None:
    guide = Guide("json_schema", '{"$ref": "https://example.com/a"}', fixes_blanks=True)
    trial = compiler_worker._attempt(guide, Follower(0), brackets_only=True, trusts_plain=True)
    assert "which is not followed" in str(trial.fault)
