"""Faults in the text of a guide, found in one pass."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.guides.guide import _BRACKETS, find_excess, find_misread_pair, find_nul
from trtllm_truss.requests import Guide, Language

# The former pattern, quadratic in unclosed brackets.
CLOSED_BRACKETS = re.compile(r"\[(?:\\.|[^\]\\])*\]", re.DOTALL)
REGEX_TEXTS = st.text(st.sampled_from("[]\\ab(é0ß-^\n"), max_size=40)


@given(REGEX_TEXTS)
def test_closed_brackets_are_found_as_before(text: str) -> None:
    found = _BRACKETS.findall(text)
    closed = [place for place in found if CLOSED_BRACKETS.fullmatch(place)]
    assert closed == CLOSED_BRACKETS.findall(text)[: len(closed)]
    assert found[len(closed) :] in ([], [text[len(text) - len("".join(found[len(closed) :])) :]])


@given(REGEX_TEXTS)
def test_each_character_is_read_once(text: str) -> None:
    """Match from every bracket, so no character is read twice."""
    for start in (match.start() for match in re.finditer(r"\[", text)):
        assert _BRACKETS.match(text, start)


@pytest.mark.parametrize("text", ["[" * 65_536, "[" * 65_535 + "\\", "[\\" * 30_000, "é" * 65_536])
def test_long_texts(text: str) -> None:
    assert find_misread_pair(Guide("regex", text), brackets_only=True) is None
    assert find_misread_pair(Guide("ebnf_grammar", text), brackets_only=True) is None


MISREAD: list[tuple[Language, str]] = [
    ("ebnf_grammar", 'root ::= "Größe"'),
    ("regex", "x[aßb]"),
    ("regex", r"[\]é0]"),
    ("regex", "[é0"),
    ("regex", "[\x7fa]"),
    ("ebnf_grammar", 'root ::= "\x01a"'),
]
READ_RIGHT: list[tuple[Language, str]] = [
    ("ebnf_grammar", 'root ::= "Grö" "ß" "e"'),
    ("json_schema", '{"properties": {"Größe": {"const": "éa"}}}'),  # its grammar divides them
]


@pytest.mark.parametrize("brackets_only", [False, True])
@pytest.mark.parametrize(("language", "text"), MISREAD)
def test_misread_pairs_are_found(language: Language, text: str, brackets_only: bool) -> None:
    pair = find_misread_pair(Guide(language, text), brackets_only=brackets_only)
    assert pair is not None
    assert re.fullmatch("[ßé\x01\x7f][0abe]", pair)


@pytest.mark.parametrize("brackets_only", [False, True])
@pytest.mark.parametrize(("language", "text"), READ_RIGHT)
def test_similar_texts_pass(language: Language, text: str, brackets_only: bool) -> None:
    assert find_misread_pair(Guide(language, text), brackets_only=brackets_only) is None


def test_a_regular_expression_outside_of_brackets() -> None:
    guide = Guide("regex", "Größe [bß]e")
    assert find_misread_pair(guide, brackets_only=True) is None
    assert find_misread_pair(guide, brackets_only=False) == "ße"


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("regex", "a\0b", True),
        ("regex", r"a\x00b", True),
        ("regex", r"a\u0000", True),
        ("regex", r"a\u{0}", True),
        ("regex", r"a\0", True),
        ("regex", r"a\\x00b", False),
        ("regex", r"a\\\x00b", True),
        ("regex", r"[^\x00-\x1f]*", False),
        ("ebnf_grammar", r'root ::= [^"\x00-\x1f] | "\x0a"', False),
        ("ebnf_grammar", r'root ::= "\U00000000"', True),
        ("json_schema", r'{"const": "a\u0000b"}', False),
    ],
)
def test_a_nul_is_found_where_it_is_misread(language: Language, text: str, found: bool) -> None:
    assert find_nul(Guide(language, text)) == found


def nested(depth: int) -> str:
    return '{"items": ' * depth + "{}" + "}" * depth


DEEP = "it is nested more than 100 deep; simplify it."
LARGE = "with its repetitions written out it has more than 100000 parts; lower their counts."


@pytest.mark.parametrize(
    ("language", "text", "excess"),
    [
        ("regex", "((a|b1){1,300}c?){1,301}", LARGE),
        ("regex", "(#{1000}){1000}", LARGE),
        ("regex", "a{100001}", LARGE),
        ("regex", "a{0,100001}", LARGE),
        ("regex", "a{5," + "9" * 60_000 + "}", LARGE),
        ("regex", "(" * 50 + "a" + "{999999999})" * 50, LARGE),
        ("regex", "[ab]{100000}", None),
        ("regex", "a{100000,}", None),
        ("regex", r"\({100000}", None),
        ("regex", "[(]{9}" * 101, None),
        ("regex", "{{}{a}){2}", None),
        ("regex", "(" * 101, DEEP),
        ("regex", "(" * 100 + "a" + ")" * 100, None),
        ("regex", "()" * 30_000, None),
        ("ebnf_grammar", 'root ::= ("a" b{999}){999}\nb ::= "x"', LARGE),
        ("ebnf_grammar", 'root ::= "(((" # ' + "(" * 200, None),
        ("ebnf_grammar", 'root ::= "' + "(" * 200, None),
        ("ebnf_grammar", "root ::= " + "(" * 200, DEEP),
        ("json_schema", "[" * 200 + "]" * 200, DEEP),
        ("json_schema", '{"a":' * 30_000 + "1" + "}" * 30_000, DEEP),
        ("json_schema", nested(100), None),
        ("json_schema", nested(101), DEEP),
        ("json_schema", '{"type": "string", "maxLength": 100000}', None),
        ("json_schema", '{"type": "string", "maxLength": 100001}', LARGE),
        ("json_schema", '{"items": {"maxLength": 500}, "maxItems": 500}', LARGE),
        ("json_schema", '{"pattern": "(a{1000}){1000}"}', LARGE),
        ("json_schema", '{"minLength": 1000, "maxLength": 1000}', None),
        (
            "json_schema",
            '{"properties": {"maxItems": {"type": "integer"}}, "maxItems": true}',
            None,
        ),
        ("json_schema", '{"maxItems": -5, "maxLength": 2.5}', None),
        ("json_schema", "true", None),
    ],
)
def test_excess_is_found(language: Language, text: str, excess: str | None) -> None:
    assert find_excess(Guide(language, text)) == excess


@pytest.mark.parametrize("text", ["{", "", '{"a": ' + "9" * 5000 + "}"])
def test_a_schema_must_be_json(text: str) -> None:
    with pytest.raises(ValueError):
        find_excess(Guide("json_schema", text))


@given(st.text(st.sampled_from('ab(){},19*+?|\\[]"# \n'), max_size=60))
def test_every_text_has_a_size(text: str) -> None:
    find_excess(Guide("regex", text))
    find_excess(Guide("ebnf_grammar", text))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["items", "maxItems", "pattern", "enum", "x"]), inner)
    ),
    max_leaves=15,
)


@given(JSON_VALUES)
def test_every_json_value_has_a_size(value: object) -> None:
    guide = Guide("json_schema", json.dumps(value))
    find_excess(guide)
    find_misread_pair(guide, brackets_only=True)
