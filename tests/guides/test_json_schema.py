"""Grammars of JSON schemas, judged by XGrammar's own matcher and by `jsonschema`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guides.matching import XGRAMMAR, compiled, matcher, wrong_masks
from tests.guides.schema_fuzz import by_xgrammar, check, schemas

from trtllm_truss.guides.guide import GuideFault
from trtllm_truss.guides.json_schema import convert_schema
from trtllm_truss.guides.schema_parts import find_foreign_reference

KEEPS: dict[str, Callable[[Any, Any], bool]] = {
    **{"minimum": ge, "exclusiveMinimum": gt, "maximum": le, "exclusiveMaximum": lt},
}

pytestmark = pytest.mark.skipif(XGRAMMAR is None, reason="XGrammar is not installed")


def fits_of(schema: Any) -> Callable[[str], bool]:
    return matcher(json.dumps(schema))


def unkept(schema: Any) -> tuple[str, ...]:
    return convert_schema(json.dumps(schema), any_blanks=False).unkept


@pytest.mark.parametrize("seed", range(4))
def test_answers_by_random_schemas_are_valid_and_valid_ones_are_allowed(seed: int) -> None:
    """A short run of `schema_fuzz`; see there."""
    chance = random.Random(seed)
    texts = by_xgrammar(chance, 3)
    for _, schema in zip(range(60), schemas(chance), strict=False):
        assert check(schema, texts, chance).wrong is None, schema


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


@pytest.mark.parametrize(
    ("schema", "fitting", "wrong"),
    [
        # mlc-ai/xgrammar#800, vllm-project/vllm#45592 and #45599, ggml-org/llama.cpp#26930.
        (text(pattern="^yes$|^no$"), ['"yes"', '"no"'], ['"yes', 'no"', '"maybe"']),
        (text(pattern="yes|no"), ['"yes"', '"I know"'], ['"nay"']),
        (text(pattern='^say "[a-z]{2}"$'), [r'"say \"hi\""'], ['"say "hi""', '"say hi"']),
        (text(pattern=r"^C:\\[a-z]{2}$"), [r'"C:\\ab"'], [r'"C:\ab"', '"C:ab"']),
        (text(pattern="^[^,]{2,4}$"), ['"x y"', '"é漢"', r'"\"\n"'], ['"x"y"', '"a,b"', '"abcde"']),
        (text(pattern="^.+$"), ['"xy"', r'"\t"'], ['"x"y"', '"x\ny"', r'"\n"']),
        (text(pattern=r"^a\sb$"), ['"a b"', r'"a\nb"'], ['"a\nb"', '"axb"']),
        (text(pattern=r"^\W$"), ['"-"', r'"\""'], ['"""', '"a"', '"é"']),
        (text(pattern=r"^[\]\^\-\\a]+$"), [r'"]^-\\a"'], ['"b"', '"["']),
        (text(pattern=r"\S"), ['"hello world"', '" x"'], ['"  "', '""']),
        (text(pattern="^ab"), ['"abc"', r'"ab\n"'], ['"xab"']),
        (text(pattern="(?:^|,)x{2}(?:,|$)"), ['"xx"', '"a,xx,b"'], ['"axx"', '"x"']),
        (text(pattern="^[a-z]+$", maxLength=3), ['"abc"'], ['"abcd"', '""']),
        (text(pattern="^[a-z]*$", minLength=3), ['"abc"'], ['"ab"']),
        (text(pattern="^2026", format="date"), ['"2026-01-01"'], ['"1999-01-01"', '"2026"']),
        (text(format="email", maxLength=6), ['"a@b.cd"'], ['"abcdefgh@example.com"']),
        (text(format="date-time"), ['"2026-02-28T10:00:00Z"'], ['"yesterday"']),
        (text(maxLength=2), [r'"\n\n"', r'"\"\""', r'"\u00e9é"'], ['"abc"', '"\n"']),
        (text(minLength=2), [r'"\\x"', '"abc"'], ['"a"', r'"\n"']),
        (text(minLength=1, maxLength=300), ['"abc"'], ['""', '"a\tb"']),
        (text(enum=["yes", "no"], pattern="^y"), ['"yes"'], ['"no"']),
        ({"type": ["string", "null"], "enum": ["x", 1, None]}, ['"x"', "null"], ["1", '"z"']),
        ({"const": {"a": [1, "b"]}}, ['{"a": [1, "b"]}'], ['{"a":[1,"b"]}']),
        (text(pattern="^[😀-😂]$"), ['"😁"'], ['"x"']),
    ],
    ids=str,
)
def test_strings(schema: dict[str, Any], fitting: list[str], wrong: list[str]) -> None:
    assert not unkept(schema)
    for place in (schema, {"$ref": "#/$defs/s", "$defs": {"s": schema}}):
        fits = fits_of(place)
        assert [each for each in (*fitting, *wrong) if fits(each)] == fitting


@pytest.mark.parametrize(
    ("schema", "fitting", "wrong"),
    [
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "patternProperties": {"^S_": {"type": "string"}, "_n$": {"type": "null"}},
                "additionalProperties": {"type": "boolean"},
                "required": ["a"],
            },
            ['{"a": 1}', '{"a": 1, "S_x": "y", "b": true}', '{"a": 1, "b_n": null}'],
            ["{}", '{"a": 1, "a": true}', '{"a": 1, "S_x": true}', '{"a": 1, "S_n": "x"}'],
        ),
        (
            {"type": "object", "patternProperties": {'^q"$|^n/': {"type": "integer"}}},
            ["{}", r'{"q\"": 1, "n/m": 2}'],
            ['{"q": 1}', r'{"q\"": "x"}'],
        ),
        (
            {"type": "object", "properties": {"Größe": {"type": "integer"}}, "required": ["Größe"]},
            ['{"Größe": 1}'],
            ["{}"],
        ),
        (
            {
                "type": "object",
                "properties": {name: {"type": "null"} for name in "abc"},
                "minProperties": 2,
                "maxProperties": 2,
            },
            ['{"a": null, "c": null}', '{"b": null, "c": null}'],
            ["{}", '{"c": null}', '{"a": null, "b": null, "c": null}'],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}, "minProperties": 1},
            ['{"ab": 1}'],
            ["{}", '{"abc": 1}'],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["z"]},
            ['{"z": 1}', '{"a": null, "z": "x"}'],
            ["{}", '{"a": null}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            ['{"a": null}', '{"b": null}'],
            ["{}"],
        ),
        (
            {"allOf": [{"$ref": "#/$defs/a"}, {"required": ["x"], "properties": {"y": True}}]}
            | {"$defs": {"a": {"type": "object", "properties": {"x": {"type": "null"}}}}},
            ['{"x": null}', '{"x": null, "y": 1}'],
            ["{}", '{"x": 1}'],
        ),
        (
            {
                "type": "object",
                "properties": {
                    "x": {"$ref": "#/$defs/a~1b"},
                    "y": {"$ref": "#/$defs/c%20%22d"},
                    "z": {"$ref": "#/$defs/~0", "minimum": 3},
                },
                "$defs": {"a/b": {"type": "null"}, 'c "d': {"const": 1}, "~": {"type": "integer"}},
            },
            ['{"x": null, "y": 1, "z": 3}'],
            ['{"x": 1}', '{"z": 2}'],
        ),
    ],
    ids=str,
)
def test_objects(schema: dict[str, Any], fitting: list[str], wrong: list[str]) -> None:
    assert not unkept(schema)
    fits = fits_of(schema)
    assert [each for each in (*fitting, *wrong) if fits(each)] == fitting


def test_blanks_are_fixed_or_free() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "array"}}})
    spaced = '{ "a" :\n[ 1,2 ]}'
    assert not matcher(schema)(spaced)
    assert matcher(schema, any_blanks=True)(spaced)


numbers = st.one_of(
    st.integers(-300, 300).map(Decimal),
    st.decimals(-300, 300, allow_nan=False, allow_infinity=False, places=2),
    st.sampled_from([Decimal(x) for x in ("0", "0.5", "1", "-1", "9007199254740991", "1e-7")]),
)
STEPS = [Decimal(x) for x in ("0", "0.01", "0.1", "0.001", "1", "10")]


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
        fits = fits_of(schema)
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
        ({"const": {"type": "number", "minimum": 6}}, ['{"type": "number", "minimum": 6}'], ["7"]),
        ({"enum": [6000000000000000000, 1], "minimum": 0}, ["6000000000000000000"], ["2"]),
    ],
    ids=str,
)
def test_where_bounds_are(schema: dict[str, Any], fitting: list[str], wrong: list[str]) -> None:
    fits = fits_of(schema)
    assert [text for text in (*fitting, *wrong) if fits(text)] == fitting


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (
            {"type": "integer", "minimum": 0.2, "maximum": 0.8},
            "no integer of at most 20 digits fits minimum 0.2, maximum 0.8; widen the bounds.",
        ),
        (
            {"items": {"type": "number", "minimum": 1e30}, "minItems": 1},
            "no number of at most 20 digits fits minimum 1e+30; widen the bounds.",
        ),
        ({"type": "number", "minimum": "3"}, "its minimum is 3; send a number."),
        ({"type": "string", "maxLength": -1}, "its maxLength is -1; send 0 or more."),
        ({"type": "string", "pattern": 5}, "its pattern is 5; send a regular expression."),
        (
            {"type": "string", "pattern": "^a{3}$", "maxLength": 2},
            "no text fits it: no string fits its pattern and its maxLength.",
        ),
        ({"properties": []}, "its properties is []; send an object."),
        ({"type": "object", "required": "a"}, "its required is 'a'; send a list of names."),
        (
            {"$ref": "#/$defs/x"},
            "its $ref '#/$defs/x' refers to no part of it; correct the reference.",
        ),
        (
            {"enum": [1], "type": "string"},
            "no text fits it: no value of enum fits the keywords next to it",
        ),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no text fits it"),
    ],
    ids=str,
)
def test_schemas_that_nothing_fits_are_refused(schema: dict[str, Any], fault: str) -> None:
    with pytest.raises(GuideFault) as found:
        unkept(schema)
    assert str(found.value).startswith(fault)


A, B = {"type": "integer"}, {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": A, "b": B}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({**A, "multipleOf": 2}, "multipleOf"),
        ({**A, "not": {"const": 3}}, "not"),
        ({**A, "if": {}, "then": {"const": 1}}, "if"),
        ({"type": "array", "items": A, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "items": A, "contains": {"const": 1}}, "contains"),
        ({**OBJECT, "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"allOf": [{"anyOf": [A, B]}, {"anyOf": [A]}]}, "allOf"),
        ({"oneOf": [A, {"type": "number"}]}, "oneOf with choices that overlap"),
        (
            {"anyOf": [OBJECT], "type": "object", "additionalProperties": False},
            "type beside anyOf",
        ),
        (text(pattern="^(?=a)"), "pattern '^(?=a)' (it has (?=)"),
        (text(pattern=r"^(a)\1$"), r"pattern '^(a)\\1$' (it has \1)"),
        (text(pattern=r"\bx"), r"pattern '\\bx' (it has \b)"),
        (text(pattern=r"\p{L}"), r"pattern '\\p{L}' (it has \p)"),
        (text(pattern="^(ab|c)*$", maxLength=9000), "maxLength beside such a pattern"),
        ({"type": "object", "propertyNames": {"not": {}}}, "propertyNames"),
        (
            {"type": "object", "additionalProperties": A, "minProperties": 2},
            "minProperties of members that are not named",
        ),
    ],
    ids=str,
)
def test_keywords_without_effect_are_found(schema: dict[str, Any], found: str) -> None:
    assert unkept(schema) == (found,)
    inside = {"type": "object", "properties": {"p": {"anyOf": [{"type": "null"}, schema]}}}
    assert unkept(inside) == (found,)
    fits_of(schema)  # the rest is followed


@pytest.mark.parametrize(
    "schema",
    [
        {},
        OBJECT,
        {"type": "object", "additionalProperties": A, "propertyNames": {"pattern": "^a+$"}},
        {"$ref": "#/$defs/a", "description": "one", "$defs": {"a": OBJECT}},
        {"anyOf": [A, {"type": "null"}], "default": None, "title": "A"},
        {"allOf": [{"$ref": "#/$defs/not"}], "$defs": {"not": OBJECT}},
        {"allOf": [OBJECT, {"required": ["b"]}]},
        {"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": A}},
        {"type": "object", "properties": {"not": A, "if": B, "allOf": B}, "required": ["not"]},
        {"type": "array", "items": A, "uniqueItems": False, "examples": [{"not": 1}]},
        {"enum": [{"multipleOf": 3}], "default": {"not": {}}},
        {"oneOf": [{**OBJECT, "properties": {"a": {"const": n}}} for n in (1, 2)]},
    ],
    ids=str,
)
def test_schemas_that_are_followed(schema: dict[str, Any]) -> None:
    assert unkept(schema) == ()
    fits_of(schema)


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


@pytest.mark.parametrize("required", [0, 3000])
@pytest.mark.parametrize("bounds", [{}, {"maxProperties": 2}, {"minProperties": 2}])
def test_an_object_of_thousands_of_members(required: int, bounds: dict[str, int]) -> None:
    """As many as a guide's 65,536 characters hold, beyond the depth of Python's calls."""
    names = [f"f{number}" for number in range(3000)]
    schema = {"properties": {key: {} for key in names}, "additionalProperties": False, **bounds}
    if not (required and "maxProperties" in bounds):
        schema["required"] = names[:required]
    assert convert_schema(json.dumps(schema), any_blanks=False)


@pytest.mark.parametrize("any_blanks", [False, True])
def test_members_that_may_follow_are_not_tried_with_each_blank(*, any_blanks: bool) -> None:
    """XGrammar keeps the comma before optional members in one rule, whose tokens it finds once."""
    names = [f"field{number}" for number in range(9)]
    schema = {"properties": {key: {"type": "integer"} for key in names}}
    grammar = convert_schema(json.dumps(schema), any_blanks=any_blanks).grammar
    rules = str(compiled(grammar).grammar.to_string()).splitlines()
    with_comma = [rule.split()[0] for rule in rules if '","' in rule or '", "' in rule]
    assert with_comma == ["comma_before_key"]


@pytest.mark.parametrize(
    "schema",
    [
        {"maxLength": 200},
        {"minLength": 150},
        {"pattern": "^[^,]*$", "maxLength": 200},
        {"pattern": "^[^,]{2,300}x$"},
        {"pattern": "^[ a-z\u4e00-\u9fff]{0,300}$"},
        {"pattern": "^[ a-z\u4e00-\u9fff]*$", "minLength": 150},
        {"pattern": "^[ a-z\u00e0-\u00ff]{0,300}$"},
    ],
)
def test_tokens_that_end_a_long_count_are_allowed_if_they_are_taken(schema: Any) -> None:
    """XGrammar's mask allowed `."` with more behind it, which the matcher does not take."""
    grammar = convert_schema(json.dumps(text(**schema)), any_blanks=False).grammar
    for before in ('"', '"ab', '"' + "ab" * 70, '"' + "ab" * 79):
        assert wrong_masks(grammar, before, [" \\", '.",', ' """', 'a"', " \n", "ab", '"a']) == []


@pytest.mark.parametrize(
    ("least", "most"), [(0, 129), (5, 200), (33, 255), (0, 256), (130, 130), (160, 191), (70, 5000)]
)
def test_long_strings_have_the_lengths_of_their_schema(least: int, most: int) -> None:
    fits = fits_of(text(minLength=least, maxLength=most))
    lengths = {*range(0, 300, 7), *(n + 32 * k for n in (-1, 0, 1) for k in range(1, 9))}
    for length in sorted(lengths | {n + k for n in (least, most) for k in (-1, 0, 1)} - {-1}):
        assert fits(json.dumps("aé漢"[length % 3] * length, ensure_ascii=False)) is (
            least <= length <= most
        ), length


def test_long_strings_of_a_schema_have_their_rules_in_common() -> None:
    """Each count above 128 took XGrammar seconds."""
    strings = {f"p{number}": text(maxLength=500 + number) for number in range(8)}
    one, eight = (
        convert_schema(json.dumps({"properties": each}), any_blanks=False).grammar
        for each in ({"p0": strings["p0"]}, strings)
    )
    assert eight.count("[^") == one.count("[^")


def test_names_with_the_conditions_of_further_members_are_not_told_apart() -> None:
    """Each of their prefixes costs as much as a string of any text."""
    same = {"type": "string"}
    named = {"name": {**same, "description": "Of a person."}, "city": same, "note": {}}
    schema = {"type": "object", "properties": named, "additionalProperties": same}
    fits, told_apart = fits_of(schema), fits_of({**schema, "minProperties": 1})
    assert "_text_" not in convert_schema(json.dumps(schema), any_blanks=False).grammar
    assert fits('{"city": "a", "name": "b", "names": "c"}')
    assert not fits('{"names": 1}')
    assert not told_apart('{"city": "a", "name": "b"}')
    is_number = fits_of({**schema, "properties": {**named, "city": {"type": "number"}}})
    assert is_number('{"city": 1, "name": "b", "cities": "c"}')
    assert not is_number('{"name": "b", "names": "c", "city": "a"}')
