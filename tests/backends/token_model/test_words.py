"""Word lists in TensorRT-LLM's format, and stop words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backends.token_model.backend_requests import word_list

from trtllm_backends.token_model.request import StopWords, read_words
from trtllm_truss.errors import InvalidRequest

TOKENS = st.integers(0, 3)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=3), min_size=1, max_size=3)


def test_the_documented_example() -> None:
    array = np.array([[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]], np.int32)

    assert read_words("stop_words_list", array) == ((5, 7, 3), (9, 2))


@pytest.mark.parametrize("array", [None, np.zeros((1, 2, 0), np.int32), np.array([[[0], [-1]]])])
def test_empty_lists(array: np.ndarray[tuple[int, ...], np.dtype[np.int32]] | None) -> None:
    assert read_words("stop_words_list", array) == ()


@given(WORDS)
def test_written_lists_are_read_unchanged(words: list[list[int]]) -> None:
    assert read_words("stop_words_list", word_list(*words)) == tuple(map(tuple, words))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[[1, 2, 3]]], "odd length"),
        ([[[1, 2], [3, 4], [1, 2]]], r"shape \[1, 3, 2\]"),
        ([[[1, 2], [3, -1]]], "out-of-bound offsets: 3 of 2"),
        ([[[1, 2], [-2, -1]]], "out-of-bound offsets: -2"),
        ([[[1, 2], [2, 1]]], "non-increasing offsets: 1"),
        ([[[1, 2], [0, 1]]], "non-increasing offsets: 0"),
        ([[[1, 2, 3], [1, -1, 3]]], "additional -1s"),
    ],
)
def test_malformed_lists_are_refused(rows: list[list[list[int]]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^stop_words_list.*{message}"):
        read_words("stop_words_list", np.array(rows, np.int32))


def test_a_word_may_begin_in_the_prompt() -> None:
    assert StopWords([(1, 2, 3)], prompt=[9, 1, 2]).complete(3)
    assert not StopWords([(1, 2)], prompt=[1, 2]).complete(5)  # but not end there


@given(WORDS, st.lists(TOKENS, max_size=4), st.lists(TOKENS, max_size=12))
def test_stops_where_the_sequence_ends_with_a_word(
    words: list[list[int]], prompt: list[int], generated: list[int]
) -> None:
    stop_words = StopWords([tuple(word) for word in words], prompt)
    sequence = list(prompt)
    for token in generated:
        sequence.append(token)
        expected = any(sequence[-len(word) :] == word for word in words)
        assert stop_words.complete(token) is expected
