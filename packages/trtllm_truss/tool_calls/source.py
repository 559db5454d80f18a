"""Text that arrives in pieces, for parsers written as generators.

A parser of type `Parse[T]` yields where it needs more text and returns a `T`. It decides from the
text alone, never from where a piece ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Parse: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], object]

MAX_HELD = 1 << 18
"""Limit of held text, in characters."""

SPACE = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The text does not fit the format, or ends too early."""


class Markers:
    """Words to look for at the same time.

    Args:
        words: the words. No word is a prefix of another.
    """

    def __init__(self, *words: str) -> None:
        self.pattern = re.compile("|".join(map(re.escape, words)) or r"(?!)")
        self._starts = re.compile("|".join(re.escape(word[0]) for word in words) or r"(?!)")
        self._beginnings = {word[:end] for word in words for end in range(1, len(word))}
        self._reach = max(map(len, words), default=1) - 1

    def find_beginning(self, text: str, at: int) -> int:
        """Return where the end of `text` may be the beginning of a word, or the text's length."""
        for match in self._starts.finditer(text, max(at, len(text) - self._reach)):
            if text[match.start() :] in self._beginnings:
                return match.start()
        return len(text)


class Source:
    """The unread text of one answer.

    Text can be held: recorded while it is read, and emitted as text if a call fails.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._held: list[str] | None = None
        self._room = 0

    def feed(self, text: str) -> None:
        """Append text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Mark the text as whole."""
        self._ended = True

    def hold(self, text: str = "", limit: int = MAX_HELD) -> None:
        """Hold `text` and all text read from now on, up to `limit` characters."""
        self._held = [text]
        self._room = limit - len(text)

    def release(self) -> str:
        """Return the held text and hold no more."""
        held, self._held = self._held or [], None
        return "".join(held)

    def forget(self) -> None:
        """Drop the held text and keep holding."""
        self.hold()

    def skip(self, length: int) -> str:
        """Read `length` characters, which must have arrived.

        Raises:
            Malformed: the limit of held text is reached. The characters up to it are read.
        """
        is_too_long = self._held is not None and length > self._room
        if is_too_long:
            length = self._room
        piece = self._text[self._at : self._at + length]
        self._at += length
        if self._held is not None:
            self._held.append(piece)
            self._room -= length
        if is_too_long:
            raise Malformed
        return piece

    def take(self, pattern: re.Pattern[str]) -> str:
        """Read the pattern's match in the text that has arrived; may be empty."""
        match = pattern.match(self._text, self._at)
        return self.skip(match.end() - self._at) if match else ""

    def peek(self) -> Parse[str]:
        """Return the next character without reading it; empty at the end."""
        while self._at >= len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def look(self, length: int) -> Parse[str]:
        """Return the next `length` characters without reading them; fewer at the end."""
        while len(self._text) - self._at < length and not self._ended:
            yield
        return self._text[self._at : self._at + length]

    def look_along(self, pattern: re.Pattern[str], longest: int) -> Parse[str]:
        """Return the run that the pattern matches without reading it.

        Args:
            pattern: matches a run of characters of any length.
            longest: the longest run allowed.

        Raises:
            Malformed: the run is longer.
        """
        while True:
            match = pattern.match(self._text, self._at)
            end = match.end() if match else self._at
            if end - self._at > longest:
                raise Malformed
            if end < len(self._text) or self._ended:
                return self._text[self._at : end]
            yield

    def ends_after(self, length: int) -> bool:
        """Return whether the text ends within the next `length` characters."""
        return self._ended and len(self._text) - self._at <= length

    def skip_space(self) -> Parse[None]:
        """Read white space."""
        while True:
            self.take(SPACE)
            if self._at < len(self._text) or self._ended:
                return
            yield

    def literal(self, *words: str) -> Parse[str]:
        """Read one of the words if it comes next.

        Args:
            words: the words. No word is a prefix of another.

        Returns:
            The word, or an empty text if none comes next.
        """
        longest = max(map(len, words), default=0)
        while True:
            text = self._text[self._at : self._at + longest]
            for word in words:
                if text.startswith(word):
                    return self.skip(len(word))
            if self._ended or not any(word.startswith(text) for word in words):
                return ""
            yield

    def expect(self, *words: str) -> Parse[str]:
        """Read one of the words.

        Raises:
            Malformed: none comes next.
        """
        word = yield from self.literal(*words)
        if not word:
            raise Malformed
        return word

    def close(self, *words: str) -> Parse[None]:
        """Read white space and one of the words, and drop both.

        Does nothing if none of the words follows. At the end of the text, the beginning of a word
        counts as the word.
        """
        yield from self.skip_space()
        rest = yield from self.literal(*words)
        if not rest and self._ended:
            rest = self._text[self._at :]
            if not any(word.startswith(rest) for word in words):
                return
            self.skip(len(rest))
        if rest:
            self.forget()

    def until(self, markers: Markers, emit: Emit) -> Parse[str]:
        """Read up to the first marker and past it.

        Args:
            markers: what to look for.
            emit: takes the text before the marker, as it becomes certain.

        Returns:
            The marker, or an empty text at the end.
        """
        while True:
            match = markers.pattern.search(self._text, self._at)
            if match:
                end = match.start()
            else:
                end = len(self._text)
                if not self._ended:
                    end = markers.find_beginning(self._text, self._at)
            if end > self._at:
                emit(self.skip(end - self._at))
            if match:
                return self.skip(len(match.group()))
            if self._ended:
                return ""
            yield


def run(parse: Parse[T]) -> T:
    """Run a parser whose source has ended.

    Raises:
        Malformed: as the parser does.
    """
    try:
        while True:
            next(parse)
    except StopIteration as stop:
        result: T = stop.value
        return result
