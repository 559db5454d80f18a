"""Answers broken at words on a terminal."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from trtllm_workbench.cli.wrapping import WordWrap

WORDS = ["a", "of", "word", "longer", "mathematical", "x" * 30, "é", "e\u0301", "日", "\n", "  "]


def shown(text: str, width: int, sizes: list[int] | None = None) -> str:
    wrap, result, place = WordWrap(width), "", 0
    for size in sizes or [len(text)]:
        result += wrap.push(text[place : place + size])
        place += size
    return result + wrap.push(text[place:]) + wrap.end()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a mathematical concept", "a\nmathematical\nconcept"),
        ("one two three", "one two three"),
        ("one two threes", "one two\nthrees"),
        ("- one\n  - two three four", "- one\n  - two three\nfour"),
        ("of all supercalifragilistic", "of all\nsupercalifragilistic"),
        ("", ""),
        ("end \n\n", "end \n\n"),
        ("日本語のテキスト", "日本語のテキ\nスト"),
        (
            "see this:\n```py\nreturn one + two + three\n```\nand then this",
            "see this:\n```py\nreturn one + two + three\n```\nand then this",
        ),
        ("```one two three``` four", "```one two three``` four"),
    ],
)
def test_lines_are_broken_at_words(text: str, expected: str) -> None:
    assert shown(text, 13) == expected


@pytest.mark.parametrize("seed", range(200))
def test_pieces_do_not_matter_and_no_word_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    width = chance.randint(4, 40)
    text = "".join(
        chance.choice(WORDS) + chance.choice(["", " ", " "]) for _ in range(chance.randint(0, 60))
    )
    whole = shown(text, width)
    sizes = [chance.randint(1, 9) for _ in range(len(text))]
    assert shown(text, width, sizes) == whole
    assert "".join(whole.split()) == "".join(text.split())
    assert {word for word in broken_by_the_terminal(whole, width) if len(word) <= width} == set()


def broken_by_the_terminal(text: str, width: int) -> Iterator[str]:
    """Yield the words, but for the first of a line, in which a terminal breaks it."""
    for line in text.split("\n"):
        column = 0
        for place, word in enumerate(re.findall(r"^ *[^ 日]*| +|日|[^ 日]+", line)):
            columns = 2 if word == "日" else len(word.replace("\u0301", ""))
            if place and column + columns > width and word.strip(" 日"):
                yield word
            column = (column + columns - 1) % width + 1
