"""Text that arrives in pieces, and the parts of an answer as they become certain.

A parser is a generator of type `Parse[T]`: it yields where it needs more text and returns a `T`. It
decides from the text alone, never from where a piece ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

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


_MAX_SCHEMAS = 64
_NAMES = {
    **{name: name for name in ("string", "number", "boolean", "object", "array", "null")},
    "integer": "number",
}
_TYPE_NAMES = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}


class ArgumentTypes:
    """The types of one function's arguments.

    Each schema is looked through once, for all arguments of all answers: a caller's `enum` can have
    half a million values.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._read: dict[int, tuple[set[str], list[Any]]] = {}

    def of(self, key: str) -> frozenset[str]:
        """Return the JSON types of an argument, `integer` as `number`.

        Follows `anyOf`, `oneOf`, `allOf`, `enum`, `const` and references inside of the schema.

        Returns:
            `string` alone if the schema does not tell.
        """
        properties = self._parameters.get("properties")
        first = properties.get(key) if isinstance(properties, Mapping) else None
        types: set[str] = set()
        schemas = [first]
        for _ in range(_MAX_SCHEMAS):  # references may be circular
            if not schemas:
                break
            schema = schemas.pop()
            if not isinstance(schema, Mapping):
                continue
            if id(schema) not in self._read:
                self._read[id(schema)] = _own_types(schema), self._followers(schema)
            own, followers = self._read[id(schema)]
            types |= own
            schemas += followers
        return frozenset(types or {"string"})

    def _followers(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return the schemas to look through after one, the last one first; no more than are."""
        followers: list[Any] = []
        for keyword in ("anyOf", "oneOf", "allOf"):
            followers += _as_list(schema.get(keyword))[-_MAX_SCHEMAS:]
        if "$ref" in schema:
            followers.append(_resolve(self._parameters, schema["$ref"]))
        return followers


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("type")
    types = {_NAMES[n] for n in [names, *_as_list(names)] if isinstance(n, str) and n in _NAMES}
    values = [*_as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return types or {_TYPE_NAMES.get(type(value), "null") for value in values}


def _resolve(root: Mapping[str, Any], reference: object) -> Any:
    node: Any = root
    for part in str(reference).removeprefix("#").split("/")[1:]:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Tool:
    """A function that the request offers.

    Attributes:
        parameters: the JSON schema of its arguments; may be empty.
    """

    name: str
    parameters: Mapping[str, Any]

    @cached_property
    def argument_types(self) -> ArgumentTypes:
        """The types of its arguments."""
        return ArgumentTypes(self.parameters)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """More of the answer's text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins; its arguments follow.

    Attributes:
        index: the number of calls before it.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments, as JSON text; never empty."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call ends.

    Attributes:
        index: as in `CallStarted`.
        complete: whether the arguments are a whole JSON object. False for a call that was cut off
            or turned out malformed; the arguments are then the beginning of an object.
    """

    index: int
    complete: bool


def call_as_text(name: str, arguments: str = "") -> str:
    """Return the beginning of a call, for a call that was cut off."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}'


Event: TypeAlias = ParsedText | ReasoningDelta | CallStarted | ArgumentsDelta | CallEnded

MAX_SPACE = 1024
"""White space that is held until it is known what follows; a longer run counts as text."""

_Delta = type[ParsedText] | type[ReasoningDelta] | type[ArgumentsDelta]


class Emitter:
    """Collects events between two calls of `drain`.

    Drops white space that is layout: before a call without text in front of it, after the last
    call, and around the markers of reasoning.

    Args:
        source: the source; its held text is dropped when a call is announced.
        tools: the functions that may be called; None allows any name.

    Attributes:
        line_is_blank: whether the current line has only white space so far.
    """

    def __init__(self, source: Source, tools: Sequence[Tool] | None) -> None:
        self._source = source
        self._tools = None if tools is None else {tool.name: tool for tool in tools}
        self._events: list[Event] = []
        self._delta: _Delta | None = None
        self._pieces: list[str] = []
        self._calls = 0
        self._in_call = False
        self._has_reasoned = False
        self._has_text = False
        self._before: Literal["start", "call", "reasoning", "text"] = "start"
        self._space = ""
        self.line_is_blank = True

    def offers(self, name: str) -> bool:
        """Return whether a function may be called."""
        return bool(name) and (self._tools is None or name in self._tools)

    def tool(self, name: str) -> Tool:
        """Return the function of that name; without parameters if unknown."""
        return (self._tools or {}).get(name, Tool(name, {}))

    def text(self, text: str) -> None:
        """Add text."""
        if not text:
            return
        _, newline, line = text.rpartition("\n")
        is_blank = not line or line.isspace()
        self.line_is_blank = is_blank and (bool(newline) or self.line_is_blank)
        if self._before == "reasoning":
            text = text.lstrip()
            self._before = "text" if text else "reasoning"
        elif self._before != "text":
            text = self._space + text
            if text.isspace() and len(text) <= MAX_SPACE:
                self._space = text
                return
            self._space, self._before = "", "text"
        self._has_text = self._has_text or bool(text)
        self._add(ParsedText, text)

    def start_text(self) -> None:
        """Begin a block of text; a line break divides it from the block before."""
        if self._has_text:
            self._before, self._space = "call", "\n"

    def start_reasoning(self) -> None:
        """Begin a block of reasoning; a line break divides it from the block before."""
        self._space = "\n" if self._has_reasoned else ""
        self._before = "reasoning"

    def reasoning(self, text: str) -> None:
        """Add to the block of reasoning."""
        if self._before == "reasoning":
            text = text.lstrip()
            if not text:
                return
            self._before = "text"
        self._has_reasoned = True
        body = text.rstrip()
        if body:
            self._add(ReasoningDelta, self._space + body)
            self._space = ""
        self._space += text[len(body) :]
        if len(self._space) > MAX_SPACE:
            self._add(ReasoningDelta, self._space[:-MAX_SPACE])
            self._space = self._space[-MAX_SPACE:]

    def end_reasoning(self) -> None:
        """End the block of reasoning."""
        self._space = ""
        self._before = "reasoning"
        self.line_is_blank = True

    def start_call(self, name: str) -> None:
        """Announce a call."""
        self._source.release()
        self._flush()
        self._space = ""
        self._events.append(CallStarted(self._calls, name))
        self._in_call = True

    def arguments(self, json: str) -> None:
        """Add to the arguments of the announced call."""
        self._add(ArgumentsDelta, json)

    def end_call(self, *, complete: bool = True) -> None:
        """End the announced call and hold what follows it."""
        self._flush()
        self._events.append(CallEnded(self._calls, complete))
        self._calls += 1
        self._in_call = False
        self._before = "call"
        self.line_is_blank = True
        self._source.hold()

    def whole_call(self, name: str, arguments: str) -> None:
        """Add a call whose arguments are known."""
        self.start_call(name)
        self.arguments(arguments)
        self.end_call()

    def abandon_call(self) -> None:
        """End the announced call, if there is one, as unfinished."""
        if self._in_call:
            self.end_call(complete=False)

    def finish(self) -> None:
        """End the answer."""
        if self._before == "start":
            self._add(ParsedText, self._space)
        self._space = ""

    def drain(self) -> list[Event]:
        """Return the events since the last time, adjacent deltas merged."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _add(self, delta: _Delta, text: str) -> None:
        if not text:
            return
        if delta is not self._delta:
            self._flush()
            self._delta = delta
        self._pieces.append(text)

    def _flush(self) -> None:
        if self._pieces and self._delta:
            text = "".join(self._pieces)
            if self._delta is ArgumentsDelta:
                self._events.append(ArgumentsDelta(self._calls, text))
            elif self._delta is ReasoningDelta:
                self._events.append(ReasoningDelta(text))
            else:
                self._events.append(ParsedText(text))
        self._delta, self._pieces = None, []
