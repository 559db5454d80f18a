from __future__ import annotations

import ast
import io
import json
import token
import tokenize
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.tool_calls.source import Malformed, Source, run
from trtllm_truss.tool_calls.values import (
    MAX_ATOM,
    MAX_DEPTH,
    JsonScanner,
    PythonScanner,
    read_whole,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    atoms | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(value=values, indent=st.none() | st.just(2), ascii_only=st.booleans())
def test_json_is_passed_on_as_written(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert read_whole(text) == text


@given(text=st.text('{}[]:,"\\u01.-eE+ntrlfasbu \n\x01', max_size=12))
def test_what_is_read_is_what_python_reads(text: str) -> None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        assert read_whole(text) is None
    else:
        assert json.loads(read_whole(text) or "") == value


@given(value=values)
def test_python_literals_become_json(value: Any) -> None:
    assert json.loads(read_whole(repr(value), PythonScanner) or "") == value


@given(
    text=st.text("ab\\n\"'\\tx41u0 é\\\\", max_size=12),
    quote=st.sampled_from(["'", '"', "'''", '"""']),
)
def test_python_strings_mean_what_python_means(text: str, quote: str) -> None:
    literal = f"{quote}{text}{quote}"
    try:
        value = ast.literal_eval(literal)
        words = [word.type for word in tokenize.generate_tokens(io.StringIO(literal).readline)]
    except (SyntaxError, ValueError):
        return
    if words.count(token.STRING) == 1:  # Python joins neighbouring strings
        assert json.loads(read_whole(literal, PythonScanner) or "") == value


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("(1, 'a')", '[1, "a"]'),
        ("{'a': [1, 2,], }", '{"a": [1, 2]}'),
        ("[true, null, False]", "[true, null, false]"),
        ("-.5", "-0.5"),
        ("+1_0.", "10.0"),
        ("'\\ud83d\\ude00'", '"\\ud83d\\ude00"'),
        ("'\\U0001F600'", '"😀"'),
        ("'''a'b''c\n'''", "\"a'b''c\\n\""),
        ("''", '""'),
    ],
)
def test_python_becomes_this_json(literal: str, text: str) -> None:
    assert read_whole(literal, PythonScanner) == text


@pytest.mark.parametrize(
    "literal",
    [
        "a",
        "1 + 1",
        "{1: 2}",
        "{'a'}",
        "[1 2]",
        "007",
        "0x10",
        ".",
        "f'a'",
        "[,]",
        "(1]",
        "'\\uzzzz'",
    ],
)
def test_other_python_is_not_read(literal: str) -> None:
    assert read_whole(literal, PythonScanner) is None


def test_nesting_is_limited() -> None:
    assert read_whole("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert read_whole("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) is None


def test_numbers_are_limited() -> None:
    assert read_whole("9" * MAX_ATOM)
    assert read_whole("9" * (MAX_ATOM + 1)) is None


def test_control_characters_in_strings_are_escaped() -> None:
    assert read_whole('"a\nb\x01"') == '"a\\nb\\u0001"'


@pytest.mark.parametrize("text", ['{"a": [tru', '{"a": "\\u12', '"\\', "[1.", '{"a"'])
def test_json_is_passed_on_to_where_it_is_cut_off(text: str) -> None:
    source = Source()
    source.feed(text)
    source.end()
    pieces: list[str] = []
    with pytest.raises(Malformed):
        run(JsonScanner(source, pieces.append).read())
    assert "".join(pieces) == text
