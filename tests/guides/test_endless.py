"""Guides with a rule that no text completes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.guides.guide import find_endless
from trtllm_truss.requests import Guide, Language

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
        }
    },
    "$ref": "#/$defs/node",
}
NEEDS_ITSELF = '{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}'


@pytest.mark.parametrize(
    ("language", "text", "rule"),
    [
        ("ebnf_grammar", "root ::= root", "root"),
        ("ebnf_grammar", 'root ::= "a" root', "root"),
        ("ebnf_grammar", 'root ::= "a" | root', None),
        ("ebnf_grammar", 'root ::= "a" root?', None),
        ("ebnf_grammar", 'root ::= "a" root{0,3}', None),
        ("ebnf_grammar", 'root ::= "a" root{1,3}', "root"),
        ("ebnf_grammar", 'root ::= "a" (root | "b")', None),
        ("ebnf_grammar", 'root ::= ("a" root) | ("b" root)', "root"),
        ("ebnf_grammar", 'root ::= ("a" | root) root', "root"),
        ("ebnf_grammar", 'root ::= "a" | x\nx ::= [b] x', "x"),
        ("ebnf_grammar", 'root ::= "a"\nx ::= x', None),
        ("ebnf_grammar", 'root ::= "root" # root root\n', None),
        ("ebnf_grammar", 'root ::= [|x"] [root]', None),
        ("ebnf_grammar", 'root ::= x y\nx ::= "a" y\ny ::= "b" x', "root"),
        ("ebnf_grammar", 'root ::= ""', None),
        ("ebnf_grammar", "root ::= missing", None),
        ("ebnf_grammar", 'root ::= expr\nexpr ::= expr "+" expr | [0-9]+ | "(" expr ")"', None),
        ("ebnf_grammar", "x ::= x", None),
        ("ebnf_grammar", ") | x", None),
        ("regex", "root ::= root", None),
        ("json_schema", "true", None),
        ("json_schema", '{"$ref": "#"}', "#"),
        ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "#"),
        ("json_schema", '{"$ref": "#/$defs/a~1b/0", "$defs": {"a/b": [{"$ref": "#"}]}}', "#"),
        ("json_schema", '{"$ref": "#/missing"}', None),
        ("json_schema", '{"$ref": "http://else"}', None),
        ("json_schema", json.dumps(TREE), None),
        ("json_schema", NEEDS_ITSELF, "#"),
        ("json_schema", '{"properties": {"a": {"$ref": "#"}}}', None),
        ("json_schema", f'{{"anyOf": [true, {NEEDS_ITSELF}]}}', None),
        ("json_schema", f'{{"items": {NEEDS_ITSELF.replace("#", "#/items")}}}', "#/items"),
        ("json_schema", '{"items": {"$ref": "#"}}', None),
        ("json_schema", '{"items": {"$ref": "#"}, "minItems": 1}', "#"),
        ("json_schema", '{"prefixItems": [{"$ref": "#"}]}', "#"),
        ("json_schema", '{"type": ["null", "array"], "prefixItems": [{"$ref": "#"}]}', None),
        ("json_schema", '{"additionalProperties": {"$ref": "#"}}', None),
        ("json_schema", '{"anyOf": []}', "#"),
        ("json_schema", '{"enum": []}', "#"),
        ("json_schema", '{"enum": [1], "properties": 5}', None),
        ("json_schema", '{"allOf": [{"$ref": "#"}]}', "#"),
        ("json_schema", '{"allOf": [{"$ref": "#"}, true]}', None),
        ("json_schema", '{"type": []}', None),
    ],
)
def test_a_rule_that_never_ends_is_found(language: Language, text: str, rule: str | None) -> None:
    assert find_endless(Guide(language, text)) == rule


@given(st.text(st.sampled_from('ab root::=|()[]{}0,*+?"\\#\n'), max_size=60))
def test_every_text_is_read(text: str) -> None:
    find_endless(Guide("ebnf_grammar", "root ::= " + text))


KEYWORDS = ["$ref", "anyOf", "items", "enum", "prefixItems", "properties", "required", "type", "a"]
VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(["#", "#/a", "#/items", "object", "array"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner),
    max_leaves=15,
)


@given(VALUES)
def test_every_schema_is_read(value: object) -> None:
    find_endless(Guide("json_schema", json.dumps(value)))


def test_a_long_chain_is_read_in_a_few_rounds() -> None:
    rules = [f'r{number} ::= "a" r{number + 1}' for number in range(3000)]
    text = "\n".join(["root ::= r0", *rules, 'r3000 ::= "b"'])
    assert find_endless(Guide("ebnf_grammar", text)) is None
