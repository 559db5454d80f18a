"""Parts of a JSON schema that XGrammar drops, judged by its own matcher."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_truss.engines.cpu.openvino_genai.grammar_compiler_worker import (
    _load_converter,
    load_bindings,
)
from trtllm_truss.guides.guide import GuideFault
from trtllm_truss.guides.json_schema import (
    find_foreign_reference,
    find_unkept,
    forbid_control_characters,
    mark_bounds,
    put_bounds,
)

XGRAMMAR, TO_GRAMMAR = load_bindings(), _load_converter()
VOCABULARY = [*string.printable, "<end>"]
END = len(VOCABULARY) - 1
KEEPS: dict[str, Callable[[Any, Any], bool]] = {
    **{"minimum": ge, "exclusiveMinimum": gt, "maximum": le, "exclusiveMaximum": lt},
}

pytestmark = pytest.mark.skipif(XGRAMMAR is None, reason="XGrammar is not installed")


def matcher(schema: dict[str, Any]) -> Callable[[str], bool]:
    assert TO_GRAMMAR is not None
    marked, rules = mark_bounds(json.dumps(schema))
    text = put_bounds(forbid_control_characters(TO_GRAMMAR(marked, False)), rules)
    vocabulary = XGRAMMAR.TokenizerInfo(VOCABULARY, 0, None, [END], False)
    compiler = XGRAMMAR.GrammarCompiler(vocabulary, 1, False, -1)
    compiled = compiler.compile_grammar(XGRAMMAR.Grammar.from_ebnf(text, "root"))

    def fits(answer: str) -> bool:
        follows = XGRAMMAR.GrammarMatcher(compiled, None, False, -1)
        return bool(follows.accept_string(answer, False) and follows.accept_token(END, False))

    return fits


@pytest.mark.parametrize("bounds", [{}, {"maxLength": 3}, {"minLength": 2}])
def test_a_string_has_no_control_characters(bounds: dict[str, int]) -> None:
    fits = matcher({"type": "string", **bounds})
    assert fits('"a b"')
    assert not [mark for mark in "\t\n\r\v\f" if fits(f'"a{mark}b"')]


numbers = st.one_of(
    st.integers(-300, 300).map(Decimal),
    st.decimals(-300, 300, allow_nan=False, allow_infinity=False, places=2),
    st.sampled_from([Decimal(x) for x in ("0", "0.5", "1", "-1", "9007199254740991", "1e-7")]),
)
STEPS = [Decimal(x) for x in ("0", "0.01", "0.1", "0.001", "1", "10")]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["number", "integer"]),
    st.dictionaries(st.sampled_from([*KEEPS]), numbers, min_size=1, max_size=3),
    st.lists(numbers, max_size=5),
)
def test_what_fits_is_between_the_bounds(
    kind: str, bounds: dict[str, Decimal], others: list[Decimal]
) -> None:
    schema = {"type": kind, **{key: json.loads(f"{bounds[key]:f}") for key in bounds}}
    near = {sign * bound + step for bound in bounds.values() for step in STEPS for sign in (1, -1)}
    tried = [*near, *others]
    kept = [x for x in tried if all(KEEPS[key](x, bound) for key, bound in bounds.items())]
    if kind == "integer":
        kept = [x for x in kept if x == x.to_integral_value()]
    try:
        fits = matcher(schema)
    except GuideFault:
        assert not kept
        return
    for value in tried:
        text = f"{value:f}"
        if "." in text and (kind == "integer" or len(text.partition(".")[2]) > 6):
            continue
        if not text.startswith("-") or value:
            assert fits(text) == (value in kept), (text, schema)


@pytest.mark.parametrize(
    ("schema", "fitting", "wrong"),
    [
        ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "1.0", "0.37"], ["1.5", "-0.1"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.5", "12"], ["0", "0.0"]),
        ({"type": "integer", "exclusiveMinimum": -5}, ["-4", "-2", "0", "70"], ["-5", "1.5"]),
        ({"type": "number", "maximum": 3.4028234663852886e38}, ["7", "-2.5"], ["1e9"]),
        ({"type": "integer", "minimum": 2.5}, ["3"], ["2"]),
        ({"type": ["number", "null"], "minimum": 18}, ["18.5", "null"], ["17.9", '"a"']),
        (
            {
                "type": "object",
                "properties": {"share": {"$ref": "#/$defs/Share"}, "minimum": {"type": "integer"}},
                "required": ["share", "minimum"],
                "$defs": {"Share": {"type": "number", "minimum": 0.25, "maximum": 0.5}},
            },
            ['{"share": 0.3, "minimum": -7}', '{"share": 0.5, "minimum": 1}'],
            ['{"share": 0.2, "minimum": 1}', '{"share": 0.51, "minimum": 1}'],
        ),
        (
            {"type": "array", "items": {"type": "number", "maximum": 2}, "default": {"minimum": 9}},
            ["[1.5, 2, -0.1]"],
            ["[2.1]"],
        ),
        ({"const": {"type": "number", "minimum": 6}}, ['{"type":"number","minimum":6}'], ["7"]),
        ({"enum": [6000000000000000000, 1], "minimum": 0}, ["6000000000000000000"], ["2"]),
    ],
    ids=str,
)
def test_where_bounds_are(schema: dict[str, Any], fitting: list[str], wrong: list[str]) -> None:
    fits = matcher(schema)
    assert [text for text in (*fitting, *wrong) if fits(text)] == fitting


def test_bounds_without_a_number_between_them_are_refused() -> None:
    with pytest.raises(GuideFault, match=r"no integer of at most 20 digits fits minimum 0\.2, max"):
        mark_bounds('{"type": "integer", "minimum": 0.2, "maximum": 0.8}')
    with pytest.raises(GuideFault, match=r"fits minimum 1e\+30; widen the bounds\."):
        mark_bounds('{"items": {"type": "number", "minimum": 1e30}}')


def test_a_constant_of_the_schema_is_no_marker() -> None:
    schema = {"anyOf": [{"const": 6 * 10**18}, {"type": "number", "minimum": 3, "maximum": 4}]}
    fits = matcher(schema)
    assert [text for text in (str(6 * 10**18), "3.5", "4.5") if fits(text)] == [
        str(6 * 10**18),
        "3.5",
    ]


@pytest.mark.parametrize("bound", [True, "3", None])
def test_a_bound_that_is_no_number_is_left_to_xgrammar(bound: Any) -> None:
    text = json.dumps({"type": "number", "minimum": bound})
    assert mark_bounds(text) == (text, {})


A, B = {"type": "integer"}, {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": A, "b": B}, "required": ["a"]}
NO_OBJECT = '"text"'


@pytest.mark.parametrize(
    ("schema", "found", "allowed"),
    [
        ({**A, "multipleOf": 2}, "multipleOf", "3"),
        ({**A, "not": {"const": 3}}, "not", "3"),
        ({**A, "if": {}, "then": {"const": 1}}, "if", "3"),
        ({"type": "array", "items": A, "uniqueItems": True}, "uniqueItems", "[1, 1]"),
        ({"type": "array", "items": A, "contains": {"const": 1}}, "contains", "[2]"),
        ({**OBJECT, "dependentRequired": {"a": ["b"]}}, "dependentRequired", '{"a": 1}'),
        ({"allOf": [OBJECT, {"required": ["b"]}]}, "allOf", NO_OBJECT),
        ({**OBJECT, "anyOf": [{}]}, "properties beside anyOf", NO_OBJECT),
        ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": A}}, "minimum beside $ref", "1"),
        (
            {**OBJECT, "patternProperties": {"^x$": B}},
            "properties beside patternProperties",
            '{"x": "text"}',
        ),
        ({**OBJECT, "required": ["z"]}, "required 'z', which is no property,", '{"a": 1}'),
    ],
    ids=str,
)
def test_keywords_without_effect_are_found(
    schema: dict[str, Any], found: str, allowed: str
) -> None:
    """Each lets an answer pass that the schema forbids."""
    assert find_unkept(json.dumps(schema)) == found
    assert find_unkept(json.dumps({"properties": {"p": {"anyOf": [A, schema]}}})) == found
    assert matcher(schema)(allowed)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        OBJECT,
        {"type": "object", "additionalProperties": A, "propertyNames": {"pattern": "^a+$"}},
        {"$ref": "#/$defs/a", "description": "one", "$defs": {"a": OBJECT}},
        {"anyOf": [A, {"type": "null"}], "default": None, "title": "A"},
        {"allOf": [{"$ref": "#/$defs/not"}], "$defs": {"not": OBJECT}},
        {"type": "object", "properties": {"not": A, "if": B, "allOf": B}, "required": ["not"]},
        {"type": "array", "items": A, "uniqueItems": False, "examples": [{"not": 1}]},
        {"enum": [{"multipleOf": 3}], "const": {"not": {}}},
        {"properties": [], "required": {}, "items": True},
        {"properties": {}, "required": [[], 1], "prefixItems": 3, "$defs": []},
    ],
    ids=str,
)
def test_schemas_that_are_followed(schema: dict[str, Any]) -> None:
    assert find_unkept(json.dumps(schema)) is None


@pytest.mark.parametrize(
    "reference",
    [
        *({"$ref": "file:///etc/passwd"}, {"$ref": "http://127.0.0.1/schema"}, {"$ref": ""}),
        *({"$ref": "other.json#/x"}, {"$ref": "#anchor"}, {"$ref": "//host/x"}, {"$ref": "urn:a"}),
        *({"$dynamicRef": "#node"}, {"$recursiveRef": "#"}),
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        lambda part: part,
        lambda part: {"properties": {"a": {"items": part}}},
        lambda part: {"$defs": {"a": part}, "$ref": "#/$defs/a"},
        lambda part: {"anyOf": [{"type": "null"}, part]},
        lambda part: {"additionalProperties": part},
    ],
)
def test_references_that_are_not_followed_are_found(
    reference: dict[str, str], place: Callable[[Any], Any]
) -> None:
    ((name, target),) = reference.items()
    schema = json.dumps(place(reference))
    assert find_foreign_reference(schema) == f"{name} {target!r}"
    assert TO_GRAMMAR is not None
    assert "basic_any" in TO_GRAMMAR(schema, True)  # any value in its place


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": A}},
        {"properties": {"$ref": {"const": "http://x"}, "b": {"enum": [{"$ref": "http://x"}]}}},
        {"$id": "http://x", "$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$ref": 5},  # XGrammar says what is wrong
        True,
    ],
)
def test_references_that_are_followed(schema: Any) -> None:
    assert find_foreign_reference(json.dumps(schema)) is None
