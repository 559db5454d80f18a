"""Text that arrives in pieces.

A parser is a generator of type `Parse[T]`: it yields where it needs more text and returns a `T`. It
decides from the text alone, never from where a piece ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Parse: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], object]

MAX_DEPTH = 64
MAX_ATOM = 1024
"""Characters of a number; Python reads no integer of more than 4,300 digits."""

MAX_HELD = 1 << 18
"""Limit of held text, in characters."""

SPACES = (" ", "\t", "\r", "\n")
SPACE = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The text does not fit the format, or ends too early."""


def _refuse(text: str) -> None:
    """Refuse `NaN` and the infinities, which are no JSON."""
    raise ValueError(text)


def _bound(text: str) -> None:
    if len(text) > MAX_ATOM:
        raise ValueError(text)


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_int=_bound, parse_float=_bound)


class Markers:
    """Words to look for at the same time; of several at one place the longest is found.

    Args:
        words: the words.

    Attributes:
        reach: the length of the longest beginning of a word.
    """

    def __init__(self, *words: str) -> None:
        self._words = set(words)
        longest_first = sorted(self._words, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._starts = re.compile("|".join({re.escape(word[0]) for word in words}) or r"(?!)")
        self._beginnings = {word[:end] for word in words for end in range(1, len(word))}
        self.reach = max(map(len, words), default=1) - 1

    def find_beginning(self, text: str, at: int) -> int:
        """Return where the end of `text` may be the beginning of a word, or the text's length."""
        for match in self._starts.finditer(text, max(at, len(text) - self.reach)):
            if text[match.start() :] in self._beginnings:
                return match.start()
        return len(text)

    def unfinished(self, text: str) -> list[str]:
        """Return the beginnings of words that `text` ends in."""
        matches = self._starts.finditer(text, max(0, len(text) - self.reach))
        ends = (text[match.start() :] for match in matches)
        return [end for end in ends if end in self._beginnings]

    def goes_on(self, text: str, at: int) -> bool:
        """Return whether all of `text` from `at` on is the beginning of a word."""
        return at == len(text) or text[at:] in self._beginnings

    def rests(self, beginning: str) -> list[str]:
        """Return what makes words of a beginning."""
        longer = (word for word in self._words if word.startswith(beginning) and word != beginning)
        return [word[len(beginning) :] for word in longer]


@lru_cache(1024)
def _firsts_of(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word[:1] for word in words)


@lru_cache(1024)
def markers_of(*words: str) -> Markers:
    """Return markers; those of equal words are made once."""
    return Markers(*words)


class Source:
    """The unread text of one answer.

    Text can be held: recorded while it is read, and emitted as text if a call fails.

    Attributes:
        is_cut: the text has ended, but not by its author.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._tried = 0
        self._ended = False
        self.is_cut = False
        self._held: list[str] | None = None
        self._room = 0

    def feed(self, text: str) -> None:
        """Append text."""
        self._text = self._text[self._at :] + text
        self._at = self._tried = 0

    def unread(self, text: str) -> None:
        """Put text back in front of the unread text; it must not be held."""
        self._text = text + self._text[self._at :]
        self._at = self._tried = 0

    def end(self, *, is_cut: bool = False) -> None:
        """Mark the text as whole.

        Args:
            is_cut: its author would have gone on.
        """
        self._ended = True
        self.is_cut = is_cut

    def hold(self, text: str = "", limit: int = MAX_HELD) -> None:
        """Hold `text` and all text read from now on, up to `limit` characters."""
        self._held = [text]
        self._room = limit - len(text)

    def release(self) -> str:
        """Return the held text and hold no more."""
        held, self._held = self._held or [], None
        return "".join(held)

    def holds_words(self) -> bool:
        """Return whether the held text has letters or digits."""
        return any(map(str.isalnum, "".join(self._held or [])))

    def forget(self) -> None:
        """Drop the held text and keep holding."""
        self.hold()

    def skip(self, length: int) -> str:
        """Read `length` characters, which must have arrived.

        Raises:
            Malformed: the limit of held text is reached. The characters up to it are read.
        """
        at = self._at
        if self._held is None:
            self._at = at + length
            return self._text[at : self._at]
        is_too_long = length > self._room
        if is_too_long:
            length = self._room
        piece = self._text[at : at + length]
        self._at = at + length
        self._held.append(piece)
        self._room -= length
        if is_too_long:
            raise Malformed
        return piece

    def take(self, pattern: re.Pattern[str]) -> str:
        """Read the pattern's match in the text that has arrived; may be empty."""
        match = pattern.match(self._text, self._at)
        return self.skip(match.end() - self._at) if match else ""

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the pattern's match in the text that has arrived, without reading it."""
        return pattern.match(self._text, self._at)

    def has_room(self, length: int) -> bool:
        """Return whether so many characters can be read within the limit of held text."""
        return self._held is None or length <= self._room

    def whole_json(self) -> int:
        """Return the length of the JSON array or object that comes next and has arrived.

        Text that was looked through in vain is not looked through again.

        Returns:
            0 if there is none, or one with characters or numbers that `JsonScanner` treats
            specially.
        """
        text, at = self._text, self._at
        if at < self._tried or text.find("}" if text[at] == "{" else "]", at) < 0:
            return 0
        try:
            _, end = _JSON.raw_decode(text, at)
        except json.JSONDecodeError as error:
            self._tried = error.pos
            return 0
        except (ValueError, RecursionError):
            self._tried = len(text)
            return 0
        if text.count("{", at, end) + text.count("[", at, end) > MAX_DEPTH:
            self._tried = end
            return 0
        return end - at

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

    def skip_space(self) -> Iterable[None]:
        """Read white space; nothing is to be waited for where other text has arrived."""
        text = self._text
        if self._at < len(text):
            if text[self._at] not in SPACES:
                return ()
            self.take(SPACE)
            if self._at < len(text):
                return ()
        return self._skip_space()

    def _skip_space(self) -> Parse[None]:
        while True:
            self.take(SPACE)
            if self._at < len(self._text) or self._ended:
                return
            yield

    def next_word(self, *words: str) -> Parse[str]:
        """Return the longest of the words that comes next, without reading it; empty for none."""
        while True:
            text, at = self._text, self._at
            if at < len(text) and text[at] not in _firsts_of(words):
                return ""
            markers = markers_of(*words)
            if self._ended or len(text) - at > markers.reach or not markers.goes_on(text, at):
                match = markers.pattern.match(text, at)
                return match.group() if match else ""
            yield

    def literal(self, *words: str) -> Parse[str]:
        """Read the longest of the words that comes next.

        Returns:
            The word, or an empty text if none comes next.
        """
        text, at = self._text, self._at
        if at < len(text) and text[at] not in _firsts_of(words):
            return ""
        word = yield from self.next_word(*words)
        return self.skip(len(word)) if word else ""

    def expect(self, *words: str) -> Parse[str]:
        """Read one of the words.

        Raises:
            Malformed: none comes next.
        """
        word = yield from self.literal(*words)
        if not word:
            raise Malformed
        return word

    def close(self, *words: str) -> Parse[str]:
        """Read white space and one of the words, and drop both.

        Does nothing if none of the words follows. At the end of the text, the beginning of a word
        counts as the word.

        Returns:
            The word, or an empty text.
        """
        yield from self.skip_space()
        rest = yield from self.literal(*words)
        if not rest and self._ended:
            rest = self._text[self._at :]
            if not any(word.startswith(rest) for word in words):
                return ""
            self.skip(len(rest))
        if rest:
            self.forget()
        return rest

    def until(self, markers: Markers, emit: Emit, *, reads: bool = True) -> Parse[str]:
        """Read up to the first marker and past it.

        Args:
            markers: what to look for.
            emit: takes the text before the marker, as it becomes certain.
            reads: whether the marker is read.

        Returns:
            The marker, or an empty text at the end.
        """
        while True:
            match = markers.pattern.search(self._text, self._at)
            end = match.start() if match else len(self._text)
            if not self._ended and end >= len(self._text) - markers.reach:
                # A longer word may begin at the same place, or before.
                beginning = markers.find_beginning(self._text, self._at)
                if beginning <= end:
                    match, end = None, beginning
            if end > self._at:
                emit(self.skip(end - self._at))
            if match:
                return self.skip(len(match.group())) if reads else match.group()
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
