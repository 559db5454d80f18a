"""TensorRT-LLM's word lists, and the search for stop words in generated tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.errors import InvalidRequest

Word = tuple[int, ...]
"""The token ids of one word."""


def read_words(name: str, array: NDArray[Any] | None) -> tuple[Word, ...]:
    """Read a word list.

    Args:
        name: the tensor's name, for messages.
        array: INT32 [1, 2, n] or [2, n]. Row 0 holds the token ids of all words one after
            another, padded with 0. Row 1 holds the end of each word, counted from the start,
            padded with -1: ``[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]`` is {5, 7, 3} and {9, 2}.
            The format and the wording of its errors are those of TensorRT-LLM's C++ backend.

    Raises:
        InvalidRequest: the list is malformed.
    """
    if array is None or array.size == 0:
        return ()
    if array.size % 2:
        raise InvalidRequest(
            f"{name}: Sparse list must not have odd length: {array.size} values came."
        )
    if array.shape[-2:-1] != (2,) or array.size != 2 * array.shape[-1]:
        raise InvalidRequest(f"{name} has shape {list(np.shape(array))}; send [1, 2, n].")
    tokens, ends = (row.tolist() for row in array.reshape(2, -1))
    while ends and ends[-1] == -1:
        ends.pop()
    return tuple(_cut(name, tokens, ends))


def _cut(name: str, tokens: list[int], ends: list[int]) -> list[Word]:
    words = []
    start = 0
    for end in ends:
        if end == -1:
            raise InvalidRequest(
                f"{name}: Sparse list must not have additional -1s between offsets."
            )
        if not 0 <= end <= len(tokens):
            raise InvalidRequest(
                f"{name}: Sparse list must not have out-of-bound offsets: {end} of {len(tokens)}."
            )
        if end <= start:
            raise InvalidRequest(
                f"{name}: Sparse list must not have non-increasing offsets: {end}."
            )
        words.append(tuple(tokens[start:end]))
        start = end
    return words


class StopWords:
    """Finds the generated token that completes one of some words.

    A word may begin in the prompt, as in TensorRT-LLM, but ends with a generated token.
    """

    def __init__(self, words: Sequence[Word], prompt: Sequence[int]) -> None:
        self._by_last_token: dict[int, list[list[int]]] = defaultdict(list)
        for word in words:
            self._by_last_token[word[-1]].append(list(word))
        self._longest = max(map(len, words), default=0)
        self._tail = list(prompt[-self._longest :]) if words else []

    def complete(self, token: int) -> bool:
        """Add the next generated token; return True if a word ends with it."""
        if not self._by_last_token:
            return False
        self._tail.append(token)
        del self._tail[: -self._longest]
        words = self._by_last_token.get(token, ())
        return any(self._tail[-len(word) :] == word for word in words)
