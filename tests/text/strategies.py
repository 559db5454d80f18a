"""Inputs of the property tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

from hypothesis import strategies as st

from trtllm_truss.text.tokenizer import TextTokenizer

Item = TypeVar("Item", str, Sequence[int])

_FAMILY = "👩\u200d👩\u200d👧"
_SNIPPETS = [
    *("hello", " world", "  ", "\n", "\n\n", "\t", " the quick brown fox", "don't", "isn't it ?"),
    *(
        "def f(x):\n    return x",
        "3.14",
        "日本語",
        "你好，世界",
        "한국어",
        "é",
        "e\u0301",
        "🤖",
        _FAMILY,
    ),
    *("🇯🇵", "\ufffd", "\ufffd\ufffd", "▁", "##", "<0x41>", "</s>", "<think>", "two words", "ünï"),
    *("\x00", "\xa0"),
]

texts = st.lists(
    st.one_of(st.sampled_from(_SNIPPETS), st.text(st.characters(codec="utf-8"), max_size=6)),
    max_size=12,
).map("".join)

cuts = st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any)


def id_lists(tokenizer: TextTokenizer) -> st.SearchStrategy[list[int]]:
    """Generate ids in any order: mostly invalid UTF-8, with special and unknown ones."""
    everything = st.integers(0, tokenizer.vocab_size + 9)
    first = st.integers(0, 300)  # has the special and byte tokens
    return st.lists(st.one_of(everything, first), max_size=40)


def pieces(whole: Item, lengths: list[int]) -> Iterator[Item]:
    """Cut a sequence into pieces of repeating lengths; some may be empty."""
    start = 0
    while start < len(whole):
        for length in lengths:
            yield whole[start : start + length]
            start += length


def common_start(texts: Sequence[str]) -> str:
    """Return the common prefix of all texts."""
    return "".join(
        column[0]
        for column in takewhile(lambda column: len({*column}) == 1, zip(*texts, strict=False))
    )
