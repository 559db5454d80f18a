from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.strategies import common_start, cuts, pieces

from trtllm_truss.text.stop_words import StopWordMatcher, StopWords

letters = st.text("abc", max_size=30)
words = st.lists(st.text("abc", min_size=1, max_size=6), max_size=5)
many = settings(max_examples=5 * settings.default.max_examples)


def reference(text: str, stop_words: list[str]) -> str:
    """Return the text before the first stop word."""
    found = [at for word in stop_words if (at := text.find(word)) >= 0]
    return text[: min(found, default=len(text))]


@many
@given(text=letters, stop_words=words, lengths=cuts)
def test_any_cut_equals_a_search_in_the_whole_text(
    text: str, stop_words: list[str], lengths: list[int]
) -> None:
    matcher = StopWordMatcher(StopWords(stop_words))
    shown = ""
    for piece in pieces(text, lengths):
        more, matched = matcher.push(piece)
        shown += more
        assert matched == matcher.matched
    shown += matcher.flush()
    assert shown == reference(text, stop_words)
    assert matcher.matched == (shown != text)


@many
@given(text=letters, stop_words=words)
def test_no_more_is_held_back_than_can_still_be_cut(text: str, stop_words: list[str]) -> None:
    matcher = StopWordMatcher(StopWords(stop_words))
    continuations = ["", "x", *(word[at:] for word in stop_words for at in range(len(word)))]
    shown = ""
    for end, character in enumerate(text, start=1):
        shown += matcher.push(character)[0]
        wholes = [reference(text[:end] + way, stop_words) for way in continuations]
        assert shown == common_start(wholes)


def test_a_longer_word_that_began_earlier_is_waited_for() -> None:
    matcher = StopWordMatcher(StopWords(["c", "bcd"]))
    assert matcher.push("abc") == ("a", False)
    assert matcher.push("d") == ("", True)


def test_the_shorter_word_decides_once_the_longer_one_fails() -> None:
    matcher = StopWordMatcher(StopWords(["c", "bcd"]))
    assert matcher.push("abc") == ("a", False)
    assert matcher.push("x") == ("b", True)


def test_the_end_decides_between_words() -> None:
    matcher = StopWordMatcher(StopWords(["c", "bcd"]))
    assert matcher.push("abc") == ("a", False)
    assert matcher.flush() == "b"
    assert matcher.matched


def test_the_word_itself_is_shown_if_it_is_to_be() -> None:
    matcher = StopWordMatcher(StopWords(["c", "bcd"]), shown=True)
    assert matcher.push("abc") == ("a", False)
    assert matcher.push("x") == ("bc", True)
    assert matcher.word == "c"


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopWordMatcher(StopWords(["stop"]))
    assert matcher.push("go stop go") == ("go ", True)
    assert matcher.push("on") == ("", True)
    assert matcher.flush() == ""


def test_an_empty_word_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopWordMatcher(StopWords(["a", ""]))


@pytest.mark.timeout(20)
def test_the_work_is_linear() -> None:
    matcher = StopWordMatcher(StopWords(["a" * length + "b" for length in range(1, 300)]))
    shown = "".join(matcher.push("a" * 10)[0] for _ in range(10_000)) + matcher.flush()
    assert len(shown) == 100_000
