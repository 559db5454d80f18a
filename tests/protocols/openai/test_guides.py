"""Guides of a body: each field, and refusals by its name."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.openai.body import parse_completion
from trtllm_truss.requests import GenerationRequest, Guide

SCHEMA = {"type": "object"}


def request(**fields: Any) -> GenerationRequest:
    return parse_completion({"prompt": "Hi", **fields}, {}).requests[0]


@pytest.mark.parametrize(
    ("kind", "value", "guide"),
    [
        ("json", SCHEMA, Guide("json_schema", '{"type": "object"}')),
        ("json", '{"type":"object"}', Guide("json_schema", '{"type": "object"}')),
        ("regex", "a+", Guide("regex", "a+")),
        ("grammar", 'root ::= "a"', Guide("ebnf_grammar", 'root ::= "a"')),
        ("choice", ["yes", "no"], Guide("ebnf_grammar", 'root ::= "yes" | "no"')),
    ],
)
def test_fields_of_vllm(kind: str, value: Any, guide: Guide) -> None:
    for name, sent in (
        ("structured_outputs", {kind: value}),
        ("structured_outputs", {kind: value, "whitespace_pattern": None, "json_object": False}),
        (f"guided_{kind}", value),
    ):
        asked = request(**{name: sent})
        assert asked.guide == guide
        assert asked.name("guide") == name
    assert request(structured_outputs={"json_object": True}).guide is not None
    assert request(structured_outputs={}).guide is None


@pytest.mark.parametrize(
    ("sent", "fixed"),
    [
        ({}, True),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": None}}, True),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, False),
        ({"structured_outputs": {"disable_any_whitespace": False}, "guided_json": SCHEMA}, False),
        ({"disable_any_whitespace": False, "response_format": {"type": "json_object"}}, False),
    ],
)
def test_blanks_of_json_are_fixed_unless_allowed(sent: dict[str, Any], fixed: bool) -> None:
    asked = request(**sent)
    assert (asked.guide is not None) == bool(sent)
    assert asked.fixes_blanks is fixed


@pytest.mark.parametrize(("strict", "is_strict"), [(True, True), (False, False), (None, False)])
def test_strict_schemas(strict: bool | None, is_strict: bool) -> None:
    described = {"name": "a", "schema": SCHEMA, "strict": strict}
    guide = request(response_format={"type": "json_schema", "json_schema": described}).guide
    assert guide is not None
    assert guide.is_strict is is_strict


def test_strict_is_true_or_false() -> None:
    described = {"name": "a", "schema": SCHEMA, "strict": "yes"}
    with pytest.raises(InvalidRequest, match=r"response_format\.json_schema\.strict"):
        request(response_format={"type": "json_schema", "json_schema": described})


def test_choices_are_taken_literally() -> None:
    guide = request(guided_choice=['"', "\\", "a\nb", "é🤖", "[a] | b"]).guide
    assert guide == Guide("ebnf_grammar", r'root ::= "\"" | "\\" | "a\nb" | "é🤖" | "[a] | b"')


@pytest.mark.parametrize(
    ("sent", "param", "part"),
    [
        ({"guided_json": True}, "guided_json", "it must be a string or an object"),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": "[]"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": "a" * (1 << 17)}, "guided_json", "at most 65536 characters"),
        ({"guided_regex": ""}, "guided_regex", "must not be empty"),
        ({"guided_regex": "a" * (1 << 17)}, "guided_regex", "at most 65536 characters"),
        ({"guided_choice": []}, "guided_choice", "list of non-empty strings"),
        ({"guided_choice": [""]}, "guided_choice", "list of non-empty strings"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "grammar"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs", "json is 5"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "regex is 5"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "send one of"),
        (
            {"structured_outputs": {"disable_any_whitespace": "no"}},
            "structured_outputs",
            'whitespace is "no"; it must be true or false',
        ),
        ({"structured_outputs": {"\ud800": 1}}, "structured_outputs", r'."\ud800" is not'),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "one of them"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
            "response_format and guided_regex",
        ),
    ],
)
def test_refusals(sent: dict[str, Any], param: str, part: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**sent)
    assert (caught.value.param or "").split(".")[0] == param
    assert part in caught.value.message
