"""Text that arrives in chunks.

A parser is a generator of type `Parse[T]`: it yields when it needs more text and returns a `T`. It
decides by the text alone, never by chunk boundaries.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Parse: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], object]

MAX_DEPTH = 64
MAX_ATOM = 1024
"""Maximum characters of a number; Python parses no integer of more than 4,300 digits."""

MAX_HELD = 1 << 18
"""Limit of held text, in characters."""

SPACES = (" ", "\t", "\r", "\n")
SPACE = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The text does not match the format, or ends too early."""


def _refuse(text: str) -> None:
    """Refuse `NaN` and the infinities, which are not JSON."""
    raise ValueError(text)


def _bound(text: str) -> None:
    if len(text) > MAX_ATOM:
        raise ValueError(text)


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_int=_bound, parse_float=_bound)


class Markers:
    """Words to search for simultaneously; of several in one place, the longest is found.

    Args:
        words: the words.

    Attributes:
        firsts: first characters of the words.
        reach: length of the longest proper prefix of a word.
    """

    def __init__(self, *words: str) -> None:
        self._words = set(words)
        longest_first = sorted(self._words, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.firsts = frozenset(word[0] for word in words)
        self.starts = re.compile("|".join(map(re.escape, self.firsts)) or r"(?!)")
        self._beginnings = {word[:end] for word in words for end in range(1, len(word))}
        self.reach = max(map(len, words), default=1) - 1

    def find_beginning(self, text: str, at: int) -> int:
        """Return where a prefix of a word may start at the end of `text`, or the text's length."""
        for match in self.starts.finditer(text, max(at, len(text) - self.reach)):
            if text[match.start() :] in self._beginnings:
                return match.start()
        return len(text)

    def unfinished(self, text: str) -> list[str]:
        """Return the prefixes of words at the end of `text`."""
        at = max(0, len(text) - self.reach)
        if not self.starts.search(text, at):
            return []
        ends = (text[match.start() :] for match in self.starts.finditer(text, at))
        return [end for end in ends if end in self._beginnings]

    def goes_on(self, text: str, at: int) -> bool:
        """Return True if all of `text` from `at` on is a prefix of a word."""
        return at == len(text) or text[at:] in self._beginnings

    def rests(self, beginning: str) -> list[str]:
        """Return the suffixes that complete a prefix to words."""
        longer = (word for word in self._words if word.startswith(beginning) and word != beginning)
        return [word[len(beginning) :] for word in longer]


@lru_cache(1024)
def markers_of(*words: str) -> Markers:
    """Return markers; those of equal words are created once."""
    return Markers(*words)


class Source:
    """The unread text of one choice.

    Text can be held: recorded while it is read, and emitted as text if a call fails.

    Attributes:
        is_cut: the text has ended, but not because its author finished.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._tried = 0
        self._ended = False
        self.is_cut = False
        self._held: list[str] | None = None  # before the part of `_text` from `_held_at` on
        self._held_at = 0
        self._limit = sys.maxsize

    def feed(self, text: str) -> None:
        """Append text."""
        at = self._at
        if self._held is not None:
            self._held.append(self._text[self._held_at : at])
            self._held_at = 0
            self._limit -= at
        self._text = self._text[at:] + text
        self._at = self._tried = 0

    def unread(self, text: str) -> None:
        """Put text back before the unread text; it must not be held."""
        self._text = text + self._text[self._at :]
        self._at = self._tried = 0

    def end(self, *, is_cut: bool = False) -> None:
        """Mark the text as complete.

        Args:
            is_cut: its author would have continued.
        """
        self._ended = True
        self.is_cut = is_cut

    def hold(self, text: str = "", limit: int = MAX_HELD) -> None:
        """Hold `text` and all text read from now on, up to `limit` characters."""
        self._held = [text]
        self._held_at = self._at
        self._limit = self._at + limit - len(text)

    def release(self) -> str:
        """Return the held text and stop holding."""
        held = self._held_text()
        self.drop()
        return held

    def drop(self) -> None:
        """Drop the held text and hold no more."""
        self._held, self._limit = None, sys.maxsize

    @property
    def text(self) -> str:
        """The text that has arrived; places in it are valid until the next piece."""
        return self._text

    @property
    def place(self) -> int:
        """The place of the next character in `text`."""
        return self._at

    def skip_to(self, place: int) -> None:
        """Read up to a place in `text`, without a limit; nothing must be held."""
        self._at = place

    def _held_text(self) -> str:
        if self._held is None:
            return ""
        return "".join(self._held) + self._text[self._held_at : self._at]

    def holds_words(self) -> bool:
        """Return True if the held text contains letters or digits."""
        return any(map(str.isalnum, self._held_text()))

    def forget(self) -> None:
        """Drop the held text and keep holding."""
        self.hold()

    def skip(self, length: int) -> str:
        """Read `length` characters, which must have arrived.

        Raises:
            Malformed: the limit of held text is reached. The characters up to it are consumed.
        """
        at = self._at
        end = at + length
        if end > self._limit:
            self._at = self._limit
            raise Malformed
        self._at = end
        return self._text[at:end]

    def take(self, pattern: re.Pattern[str]) -> str:
        """Read the pattern's match in the text that has arrived; may be empty."""
        match = pattern.match(self._text, self._at)
        return self.skip(match.end() - self._at) if match else ""

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the pattern's match in the text that has arrived, without reading it."""
        return pattern.match(self._text, self._at)

    def has_text(self) -> bool:
        """Return True if unread text has arrived."""
        return self._at < len(self._text)

    def has_room(self, length: int) -> bool:
        """Return True if this many characters can be read within the limit of held text."""
        return self._at + length <= self._limit

    def whole_json(self) -> int:
        """Return the length of the following JSON array or object if it has arrived.

        Text that was searched in vain is not searched again.

        Returns:
            0 if there is none, or one with characters or numbers that `JsonScanner` treats
            specially.
        """
        end = self.json_end(self._at)
        return end and end - self._at

    def json_end(self, at: int) -> int:
        """Return the end of the array or object at a place of `text`; 0 as for `whole_json`."""
        text = self._text
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
        return int(end)

    @property
    def next_character(self) -> str:
        """The next character if it has arrived; empty otherwise."""
        return self._text[self._at : self._at + 1]

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
        """Return the run that the pattern matches, without consuming it.

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
        """Return True if the text ends within the next `length` characters."""
        return self._ended and len(self._text) - self._at <= length

    def skip_space(self) -> Iterable[None]:
        """Read white space; does not wait if other text has arrived."""
        text, at = self._text, self._at
        if at < len(text):
            if text[at] not in SPACES:
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

    def _next_word(self, words: tuple[str, ...]) -> str | None:
        """Like `next_word`; None if more text must arrive."""
        text, at = self._text, self._at
        markers = markers_of(*words)
        if at < len(text) and text[at] not in markers.firsts:
            return ""
        if self._ended or len(text) - at > markers.reach or not markers.goes_on(text, at):
            match = markers.pattern.match(text, at)
            return match.group() if match else ""
        return None

    def next_word(self, *words: str) -> Parse[str]:
        """Return the longest of the words that comes next, without consuming it; empty for none."""
        while (word := self._next_word(words)) is None:
            yield
        return word

    def literal(self, *words: str) -> Parse[str]:
        """Read the longest of the words that comes next.

        Returns:
            The word, or an empty text if none comes next.
        """
        while (word := self._next_word(words)) is None:
            yield
        return self.skip(len(word)) if word else ""

    def expect(self, *words: str) -> Parse[str]:
        """Read one of the words.

        Raises:
            Malformed: none comes next.
        """
        while (word := self._next_word(words)) is None:
            yield
        if not word:
            raise Malformed
        return self.skip(len(word))

    def close(self, *words: str) -> Parse[str]:
        """Read white space and one of the words, and drop both.

        Does nothing if none of the words follows. At the end of the text, a prefix of the word
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
        """Read up to and past the first marker.

        Args:
            markers: words to look for.
            emit: receives the text before the marker as it becomes certain.
            reads: consume the marker.

        Returns:
            The marker, or an empty text at the end.
        """
        while True:
            text, at = self._text, self._at
            match, end = None, len(text)
            if first := markers.starts.search(text, at):
                if match := markers.pattern.search(text, first.start()):
                    end = match.start()
                if not self._ended and end >= len(text) - markers.reach:
                    # A longer word may start at the same place or before.
                    beginning = markers.find_beginning(text, at)
                    if beginning <= end:
                        match, end = None, beginning
            if end > at:
                emit(self.skip(end - at))
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
