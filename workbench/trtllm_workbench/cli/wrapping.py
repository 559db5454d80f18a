"""Wrap answers at words on a terminal; pass them on unmodified elsewhere."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from trtllm_truss.cli.common import write
from trtllm_truss.literals import printable
from trtllm_workbench.cli.conversation import Write

_FENCE = "```"
_NO_WIDTH = ("Mn", "Me", "Cf")


@contextmanager
def answer_writer() -> Iterator[Write]:
    """Yield the function that writes the chunks of an answer to standard output."""
    if not sys.stdout.isatty():
        yield write
        return
    wrap = WordWrap(shutil.get_terminal_size().columns)
    try:
        yield lambda text: write(wrap.push(printable(text)))
    finally:
        write(wrap.end())


class WordWrap:
    """Breaks lines between words, as chunks of a text arrive.

    A word is held back until it ends. Code between fences and words longer than a line are left to
    the terminal.

    Args:
        width: columns per line.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._gap = ""
        self._word = ""
        self._line = ""
        self._may_break = False
        self._in_code = False

    def push(self, text: str) -> str:
        """Return the text that can be shown so far and was not returned before."""
        return "".join(map(self._take, text))

    def end(self) -> str:
        """Return the rest."""
        gap, self._gap = self._gap, ""
        if self._word:
            self._gap = gap
            return self._put_word()
        return gap

    def _take(self, letter: str) -> str:
        if letter == "\n":
            shown = self.end() + letter
            self._in_code ^= self._is_fence
            self._column, self._line = 0, ""
            return shown
        self._line += letter if len(self._line) < self._width else ""
        if self._in_code or self._is_fence:
            return self.end() + letter
        if letter in " \t":
            shown = self._put_word() if self._word else ""
            self._gap += letter
            return shown
        if _columns(letter) > 1:  # scripts without blanks break anywhere
            shown = self._put_word() if self._word else ""
            self._word, self._may_break = letter, True
            shown += self._put_word()
            self._may_break = True
            return shown
        self._word += letter
        return self._put_word() if _columns(self._word) > self._width else ""

    @property
    def _is_fence(self) -> bool:
        """True for a line that begins or ends code, which has no further backticks."""
        line = self._line.lstrip()
        return line.startswith(_FENCE) and "`" not in line.lstrip("`")

    def _put_word(self) -> str:
        word, self._word = self._word, ""
        gap, self._gap = self._gap, ""
        needed = _columns(gap) + _columns(word)
        may_break, self._may_break = gap or self._may_break, False
        if self._column and may_break and self._column + needed > self._width:
            self._column = _columns(word)
            return f"\n{word}"
        self._column += needed
        if self._column > self._width:  # the terminal breaks the word
            self._column = (self._column - 1) % self._width + 1
        return gap + word


def _columns(text: str) -> int:
    """Return the width of a text on a terminal."""
    return sum(
        0
        if unicodedata.category(letter) in _NO_WIDTH
        else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )
