"""JSON in pieces equals `json.dumps`, split anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.text import json_pieces
from trtllm_truss.text.json_pieces import dumps_in_pieces, indentation

KEYS = st.text(max_size=4) | st.integers(-9, 9) | st.none()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
)
OPTIONS: list[dict[str, Any]] = [
    {"ensure_ascii": False},
    {"ensure_ascii": True},
    {"ensure_ascii": False, "separators": (",", ":")},
]


@given(VALUES, st.sampled_from(OPTIONS), st.sampled_from([1, 8, 64]), st.sampled_from([1, 9]))
def test_pieces_are_those_of_the_whole(
    value: Any, options: dict[str, Any], characters: int, together: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE_CHARACTERS", characters)
        patch.setattr(json_pieces, "_MOST_TOGETHER", together)
        assert dumps_in_pieces(value, **options) == json.dumps(value, **options)


def test_keys_are_sorted_as_a_whole() -> None:
    value = {f"k{number % 7}{number}": "a" * 1000 for number in range(500)}
    written = dumps_in_pieces(value, ensure_ascii=False, sort_keys=True)
    assert written == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    "value",
    [
        {"enum": ["1 " * 50] * 60_000},
        "1 " * 4_000_000,
        [*range(300_000)],
        {f"k{number}": {"a": [number] * 9} for number in range(20_000)},
        [["a" * 100_000, 1], {"b" * 70_000: "c" * 70_000}],
    ],
    ids=["strings", "a text", "numbers", "objects", "long keys"],
)
def test_no_piece_is_large(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    encode = json.JSONEncoder.encode

    def noted(encoder: json.JSONEncoder, piece: Any) -> str:
        text = encode(encoder, piece)
        lengths.append(len(text))
        return text

    monkeypatch.setattr(json.JSONEncoder, "encode", noted)
    written = dumps_in_pieces(value, ensure_ascii=False)
    monkeypatch.undo()
    assert written == json.dumps(value, ensure_ascii=False)
    assert max(lengths) <= 2 * json_pieces.PIECE_CHARACTERS


@given(VALUES.filter(lambda value: isinstance(value, dict | list)))
def test_the_levels_of_all_lines(value: Any) -> None:
    lines = json.dumps(value, indent=1).split("\n")
    blanks = sum(len(line) - len(line.lstrip(" ")) for line in lines)
    closing = sum(len(line) - 1 for line in lines if line.lstrip(" ")[:1] in ("]", "}"))
    levels = indentation(value, 10**9)
    assert levels <= blanks <= levels + closing + 1
    assert indentation(value, 3) >= min(levels, 4)
