"""The grammars of calls: JSON objects, a name with arguments, Python, one tag per argument.

A grammar is data: the words around a name and its arguments. `formats` places it behind a model's
markers.
"""

from __future__ import annotations

import html
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import loads

from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.source import Emit, Malformed, Markers, Parse, Source, markers_of
from trtllm_truss.tool_calls.tool_format import CallGuide, call_schema, guide_each
from trtllm_truss.tool_calls.values import (
    PLAIN_STRING,
    PYTHON_WORDS,
    JsonScanner,
    PythonScanner,
    TooDeep,
    escape,
    read_whole,
)

MAX_NAME = 256
MAX_LEFTOVER = 256
"""Maximum meaningless characters in or after a call that are dropped; more are text."""

_MAX_USUAL = 1 << 14
"""Characters of calls that are read at once: less than can be held."""

NAME = re.compile(r"[\w.-]*")


@dataclass(frozen=True, slots=True)
class Region:
    """The text that contains a call.

    Attributes:
        ends: words that end it wherever they occur outside of a value.
        is_bare: no marker precedes it, so it needs arguments to count as a call, and ends with its
            line.
    """

    source: Source
    emitter: Emitter
    ends: tuple[str, ...]
    is_bare: bool

    def read_name(self) -> Parse[str]:
        """Read the name of a function.

        Raises:
            Malformed: the function may not be called.
        """
        written = yield from self.source.look_along(NAME, MAX_NAME)
        name = self.emitter.find(written)
        if not name:
            raise Malformed
        self.source.skip(len(written))
        return name

    def read_arguments(
        self, name: str, scanner: type[JsonScanner] = JsonScanner, fences: Sequence[str] = ()
    ) -> Parse[None]:
        """Read an object as the arguments of a function.

        `null`, or nothing where the call ends, is an empty object. If the object turns out
        malformed, the rest of the call is added to its arguments as written.

        Args:
            fences: words that may surround the object.

        Raises:
            Malformed: there is something else, or it is cut off.
        """
        source, emitter = self.source, self.emitter
        yield from source.skip_space()
        if fence := (yield from source.literal(*fences)):
            yield from source.literal("json")
            yield from source.skip_space()
        if (yield from source.peek()) != "{":
            is_null = yield from source.literal("null")
            yield from source.skip_space()
            if not is_null and (fence or not (yield from self.is_over())):
                raise Malformed
            emitter.whole_call(name, "{}")
            return
        emitter.start_call(name)
        try:
            yield from scanner(source, emitter.arguments, (*self.ends, *fences)).read()
        except TooDeep:
            raise
        except Malformed:
            yield from self.add_rest(emitter.arguments)
            raise
        emitter.end_call()
        if fence:
            yield from source.close(*fences)

    def take_usual(
        self, calls: Sequence[tuple[str, str]], behind: re.Pattern[str], end: int
    ) -> str | None:
        """Add calls, each a name and arguments, that end at a place of the source's text.

        Returns:
            As of `Grammar.read_usual`.
        """
        rest = behind.match(self.source.text, end)
        if not rest or rest.end() - self.source.place > _MAX_USUAL:
            return None
        for call in calls:
            self.emitter.whole_call(*call)
        self.source.skip_to(rest.end())
        return rest[1]

    def add_rest(self, emit: Emit) -> Parse[None]:
        """Add the rest of a malformed call to its arguments, as written."""
        ends = markers_of(*self.ends, *(["\n"] if self.is_bare else []))
        yield from self.source.until(ends, emit, reads=False)

    def is_over(self) -> Parse[bool]:
        """Return True if the call ends here."""
        if (yield from self.source.next_word(*self.ends)):
            return True
        return not (yield from self.source.peek()) and not self.source.is_cut


LEFTOVER_CHARACTERS = " \t\r\n}])\"'`,;"
_LEFTOVER = re.compile(f"[{re.escape(LEFTOVER_CHARACTERS)}]*")


def close_calls(source: Source, closers: Sequence[str], markers: Sequence[str] = ()) -> Parse[None]:
    """Drop what follows calls: closing words, stray brackets, and quotes before those.

    Does nothing after held words, which are text.

    Args:
        closers: the closing words.
        markers: words that start further calls.
    """
    while not source.holds_words():
        if (yield from source.close(*closers)):
            continue
        character = yield from source.peek()
        if character and not _LEFTOVER.fullmatch(character):
            return
        if (yield from source.next_word(*markers)):
            return
        if (yield from source.literal("}", "]", ")")):
            source.forget()
            continue
        leftover = yield from source.look_along(_LEFTOVER, MAX_LEFTOVER)
        source.skip(len(leftover))
        if not (leftover and (yield from source.close(*closers))):
            return


class Grammar(ABC):
    """A way to write calls."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words between the parts of a call; they may be special tokens."""
        return self.control_words

    @property
    def control_words(self) -> tuple[str, ...]:
        """The words in `words` that are never text."""
        return ()

    @property
    def openers(self) -> tuple[str, ...]:
        """Starts of calls that are markers themselves."""
        return ()

    @abstractmethod
    def fits(self, character: str) -> bool:
        """Return True if a call may start with a character."""

    @abstractmethod
    def read(self, opener: str, region: Region) -> Parse[None]:
        """Read the calls after one marker.

        Args:
            opener: the start that was already read; may be empty.

        Raises:
            Malformed: they are not calls, or are cut off.
        """

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call; see `ToolFormat.guides`."""
        return []

    def read_usual(self, opener: str, region: Region, behind: re.Pattern[str]) -> str | None:
        """Read calls in their usual form, if all of them and of what is behind them has arrived.

        Args:
            opener: as for `read`.
            behind: matches the text behind the calls, which is read, too.

        Returns:
            The group of `behind`; None, and nothing is read, for any others.
        """
        return None


def _begins_name(character: str) -> bool:
    return bool(character) and NAME.fullmatch(character) is not None


@dataclass(frozen=True)
class JsonGrammar(Grammar):
    """Objects `{"name": …, "arguments": {…}}`, alone or in an array.

    Accepts keys in any order, all names that models use for them, and further keys. Arguments
    before the name are held until the name is known. They may be `null`, or JSON in a string; after
    a marker they are optional. Closing braces may be missing where a call must end.

    Attributes:
        separators: words that may separate calls outside an array.
        prefix: text before a forced call.
        suffix: text after it.
        writes_array: a forced call is in an array.
        keys: keys of name and arguments in a forced call.
        has_names_as_keys: the function's name is the key of its arguments: `{"f": {…}}`.
    """

    separators: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""
    writes_array: bool = False
    keys: tuple[str, str] = ("name", "arguments")
    has_names_as_keys: bool = False

    def fits(self, character: str) -> bool:
        return character in ("{", "[")

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        if self.has_names_as_keys:
            return guide_each(tools, f'{self.prefix}[{{"NAME": ', f"}}]{self.suffix}")
        allowed = parallel if self.writes_array else None
        schema = call_schema(tools, keys=self.keys, parallel=allowed)
        return [CallGuide(self.prefix, schema, self.suffix, self.keys)]

    def read(self, opener: str, region: Region) -> Parse[None]:
        yield from region.source.skip_space()
        opener = opener or (yield from region.source.expect("{", "["))
        if opener == "[":
            yield from self._read_array(region)
        else:
            yield from self._read_objects(region)

    def read_usual(self, opener: str, region: Region, behind: re.Pattern[str]) -> str | None:
        source, text = region.source, region.source.text
        opened = None if opener else _OPEN_LIST.match(text, source.place)
        at = opened.end() if opened else source.place
        is_array = opener == "[" or opened is not None
        if self.has_names_as_keys or (self.separators and not is_array):
            return None
        usual, calls = _USUAL_HEAD if opener == "{" else _USUAL_CALL, []
        while True:
            head = usual.match(text, at)
            name = region.emitter.find(head[1]) if head else ""
            end = source.json_end(head.end()) if head and name else 0
            brace = _CLOSING_BRACE.match(text, end) if end else None
            if not head or not brace:
                return None
            calls.append((name, text[head.end() : end]))
            after = _NEXT_ITEM.match(text, brace.end()) if is_array else brace
            if not after:
                return None
            at = after.end()
            if text[at - 1] != ",":
                return region.take_usual(calls, behind, at)

    def _read_array(self, region: Region) -> Parse[None]:
        source = region.source
        separator = ","
        while separator == ",":
            yield from source.skip_space()
            yield from source.expect("{")
            yield from self.read_object(region)
            yield from source.skip_space()
            separator = yield from source.expect(",", "]")
        source.forget()

    def _read_objects(self, region: Region) -> Parse[None]:
        source = region.source
        while True:
            yield from self.read_object(region)
            yield from source.skip_space()
            separator = yield from source.literal(*self.separators)
            yield from source.skip_space()
            if not (yield from source.literal("{")):
                if separator:
                    raise Malformed
                return

    def read_object(self, region: Region) -> Parse[None]:
        """Read one call whose opening brace was read."""
        yield from _JsonCall(region, self.has_names_as_keys).read()


_NAME_KEYS = {"name", "function", "tool_name"}
_ARGUMENT_KEYS = {"arguments", "parameters", "args"}
_CALL_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"type", "id", "tool_call_id"}


_USUAL_HEAD = re.compile(
    r'[ \t\r\n]*"(?:name|function|tool_name)"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"'
    r'[ \t\r\n]*,[ \t\r\n]*"(?:arguments|parameters|args)"[ \t\r\n]*:[ \t\r\n]*(?=\{)'
)


_OPEN_LIST = re.compile(r"[ \t\r\n]*\[")
_NEXT_ITEM = re.compile(r"[ \t\r\n]*[,\]]")
_USUAL_CALL = re.compile(rf"[ \t\r\n]*\{{{_USUAL_HEAD.pattern}")
_CLOSING_BRACE = re.compile(r"[ \t\r\n]*\}")


class _JsonCall:
    """Reads the object of one call whose opening brace was read."""

    def __init__(self, region: Region, has_names_as_keys: bool) -> None:
        self._region = region
        self._source = region.source
        self._emitter = region.emitter
        self._has_names_as_keys = has_names_as_keys
        self._name = ""
        self._arguments: str | None = None
        self._is_done = False
        self._is_nested = False

    def read(self) -> Parse[None]:
        """Read to the closing brace.

        Raises:
            Malformed: the object is broken, cut off or not a call of an offered function.
        """
        if self._read_usual() and self._source.take(_CLOSING_BRACE):
            self._source.forget()
            return
        yield from self._members()
        if not self._is_done:
            if self._region.is_bare or not self._name:
                raise Malformed
            self._emitter.whole_call(self._name, "{}")
        self._source.forget()

    def _members(self) -> Parse[None]:
        separator = ","
        if self._is_done:
            yield from self._source.skip_space()
            separator = yield from self._source.literal(",", "}")
        elif self._name and not self._is_nested:
            yield from self._read_arguments("{")
            yield from self._source.skip_space()
            separator = yield from self._source.literal(",", "}")
        while separator == ",":
            yield from self._source.skip_space()
            key = yield from self._string()
            yield from self._source.skip_space()
            yield from self._source.expect(":")
            yield from self._source.skip_space()
            yield from self._member(key)
            yield from self._source.skip_space()
            separator = yield from self._source.literal(",", "}")
        if not separator:
            yield from self._check_end()

    def _read_usual(self) -> bool:
        """Read name and arguments in the usual order, as far as they have arrived.

        Returns:
            True if the arguments were read. Otherwise they are next if the name is known.
        """
        source = self._source
        head = None if self._has_names_as_keys else source.match(_USUAL_HEAD)
        if not head or not (name := self._emitter.find(head.group(1))):
            return False
        source.skip(head.end() - head.start())
        self._name = name
        if length := source.whole_json():
            self._emitter.start_call(name)
            self._emitter.arguments(source.skip(length))
            self._emitter.end_call()
            self._is_done = True
        return self._is_done

    def _check_end(self) -> Parse[None]:
        """Accept a missing brace where the call must end.

        Raises:
            Malformed: it does not end here.
        """
        following = yield from self._source.next_word("]", *self._region.ends)
        if not following or not self._name:
            raise Malformed

    def _member(self, key: str) -> Parse[None]:
        is_name = self._has_names_as_keys and not self._name and self._emitter.find(key)
        if self._region.is_bare and key not in _CALL_KEYS:
            raise Malformed  # another object: emit it without waiting for its end
        character = yield from self._source.peek()
        if is_name and character in ("{", "n"):
            self._name = self._emitter.find(key)
            yield from self._read_arguments(character)
        elif key == "function" and character == "{" and not self._is_nested:
            # The shape of OpenAI's API: {"type": "function", "function": {…}}.
            self._is_nested = True
            self._source.skip(1)
            yield from self._members()
        elif key in _NAME_KEYS and not self._name:
            self._name = self._emitter.find((yield from self._string()))
            if not self._name:
                raise Malformed
        elif key in _ARGUMENT_KEYS and self._arguments is None and not self._is_done:
            yield from self._read_arguments(character)
        else:
            yield from JsonScanner(self._source, _ignore).read()
        if self._name and self._arguments is not None and not self._is_done:
            self._emitter.whole_call(self._name, self._arguments)
            self._is_done = True

    def _read_arguments(self, character: str) -> Parse[None]:
        if self._name and character == "{":
            yield from self._region.read_arguments(self._name)
            self._is_done = True
            return
        value = yield from self._value()
        if character == '"':
            value = read_whole(loads(value) or "{}") or ""
        if value == "null":
            value = "{}"
        if not value.startswith("{"):
            raise Malformed
        self._arguments = value

    def _string(self) -> Parse[str]:
        if (yield from self._source.peek()) != '"':
            raise Malformed
        if plain := self._source.match(PLAIN_STRING):
            return self._source.skip(plain.end() - plain.start())[1:-1]
        text: str = loads((yield from self._value()))
        return text

    def _value(self) -> Parse[str]:
        pieces: list[str] = []
        yield from JsonScanner(self._source, pieces.append).read()
        return "".join(pieces)


def _ignore(text: str) -> None:
    """Discard text."""


_CALL_ID = re.compile(r"[\w-]*")
_INDEX = re.compile(r":[0-9]*")


@dataclass(frozen=True)
class NamedGrammar(Grammar):
    """A name, a separator and the arguments: `f[ARGS]{…}`.

    Attributes:
        separators: words between name and arguments, optional if the arguments follow.
        prefix: text that may precede the name.
        id_marker: a word before a call's id, between name and separator.
        kinds: a kind and a separator may precede the name: `function<sep>f`.
        has_index: `:` and a number may follow the name.
        fences: words that may surround the arguments.
        scanner: reads the arguments.
        written: text before and after a forced call's arguments; see `guide_each`.
    """

    separators: tuple[str, ...] = ()
    prefix: str = ""
    id_marker: str = ""
    kinds: bool = False
    has_index: bool = False
    fences: tuple[str, ...] = ()
    scanner: type[JsonScanner] = JsonScanner
    written: tuple[str, str] | None = None

    @property
    def control_words(self) -> tuple[str, ...]:
        return (*self.separators, *filter(None, [self.id_marker]))

    def fits(self, character: str) -> bool:
        return _begins_name(character)

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        return [] if self.written is None else guide_each(tools, *self.written)

    def read(self, opener: str, region: Region) -> Parse[None]:
        source = region.source
        yield from source.skip_space()
        yield from source.literal(*filter(None, [self.prefix]))
        if self.kinds:
            name = yield from self._read_behind_kind(region)
        else:
            name = yield from region.read_name()
            yield from self._read_separator(region)
        yield from source.skip_space()
        yield from region.read_arguments(name, self.scanner, self.fences)

    def _read_behind_kind(self, region: Region) -> Parse[str]:
        source = region.source
        first = yield from source.look_along(NAME, MAX_NAME)
        source.skip(len(first))
        yield from source.expect(*self.separators)
        yield from source.skip_space()
        character = yield from source.peek()
        if region.emitter.find(first) and not _begins_name(character):
            return region.emitter.find(first)
        name = yield from region.read_name()
        return name

    def _read_separator(self, region: Region) -> Parse[None]:
        source = region.source
        if self.has_index:
            source.skip(len((yield from source.look_along(_INDEX, 16))))
        yield from source.skip_space()
        if self.id_marker and (yield from source.literal(self.id_marker)):
            source.skip(len((yield from source.look_along(_CALL_ID, 64))))
        if not (yield from source.literal(*self.separators)):
            yield from source.skip_space()
            if not (yield from source.next_word("{", *region.ends)):
                raise Malformed


_KEYWORD = re.compile(r"\w*")
_USUAL_ARGUMENT = (
    r"(\w{1,256})[ \t\r\n]*=[ \t\r\n]*"
    r"""("[^"\\]+"|'[^'\\]+'|(?:[Tt]rue|[Ff]alse|null|None"""
    r"|-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][-+]?[0-9]{1,300})?)(?![-+.\w]))"
)
_KEYWORD_ARGUMENT = re.compile(_USUAL_ARGUMENT)
_SPACED_COMMA = r"[ \t\r\n]*,[ \t\r\n]*"
_PLAIN_ARGUMENT = re.sub(r"\((?!\?)", "(?:", _USUAL_ARGUMENT)
_USUAL_PYTHON = re.compile(
    rf"([\w.-]{{1,256}})\([ \t\r\n]*"
    rf"((?:{_PLAIN_ARGUMENT}(?:{_SPACED_COMMA}{_PLAIN_ARGUMENT})*(?:[ \t\r\n]*,)?)?)[ \t\r\n]*\)"
)


_USUAL_ITEM = re.compile(rf"[ \t\r\n]*{_USUAL_PYTHON.pattern}[ \t\r\n]*([,\]])")


@dataclass(frozen=True)
class PythonGrammar(Grammar):
    """Calls with keyword arguments: `[f(a=1, b="x"), g()]`, or one per line without brackets.

    Arguments are literals in Python's or JSON's spelling.

    Attributes:
        objects: reads items that are JSON objects instead.
    """

    objects: JsonGrammar = field(default_factory=JsonGrammar)

    def fits(self, character: str) -> bool:
        return character == "[" or _begins_name(character)

    def read_usual(self, opener: str, region: Region, behind: re.Pattern[str]) -> str | None:
        source, text = region.source, region.source.text
        calls: list[tuple[str, str]] = []
        at = source.place
        if not opener:
            opened = _OPEN_LIST.match(text, at)
            at = opened.end() if opened else len(text)
        end = ""
        while end != "]":
            item = _USUAL_ITEM.match(text, at)
            name = region.emitter.find(item[1]) if item else ""
            if not item or not name:
                return None
            calls.append((name, _usual_arguments(item[2])))
            at, end = item.end(), item[3]
        return region.take_usual(calls, behind, at)

    def read(self, opener: str, region: Region) -> Parse[None]:
        source = region.source
        yield from source.skip_space()
        opener = opener or (yield from source.literal("["))
        while True:
            yield from source.skip_space()
            if opener and not region.is_bare and (yield from source.literal("{")):
                yield from self.objects.read_object(region)
            else:
                yield from read_python_call(region)
            yield from source.skip_space()
            if opener:
                if (yield from source.expect(",", "]")) == "]":
                    break
            else:
                yield from source.literal(",", ";")
                yield from source.skip_space()
                if not _begins_name((yield from source.peek())):
                    return
        source.forget()


def read_python_call(region: Region) -> Parse[None]:
    """Read one call: a name, and keyword arguments in parentheses.

    Raises:
        Malformed: it is not a call, is cut off, or its function is not offered.
    """
    source = region.source
    if _read_usual_python(region):
        return
    name = yield from region.read_name()
    yield from source.expect("(")
    arguments = _KeywordArguments(name, region.emitter)
    try:
        yield from _read_keyword_arguments(arguments, region)
    except TooDeep:
        raise
    except Malformed:
        if arguments.is_announced:
            yield from region.add_rest(arguments.value)
        raise
    arguments.close()


def _read_usual_python(region: Region) -> bool:
    """Read a call with plain strings and atoms as arguments, if it has arrived completely."""
    match = region.source.match(_USUAL_PYTHON)
    if not match or not region.source.has_room(match.end() - match.start()):
        return False
    name = region.emitter.find(match.group(1))
    if not name:
        return False
    region.source.skip(match.end() - match.start())
    region.emitter.whole_call(name, _usual_arguments(match[2]))
    return True


def _usual_arguments(written: str) -> str:
    pairs = _KEYWORD_ARGUMENT.finditer(written)
    return "{" + ", ".join(f'"{each[1]}": {_usual_json(each[2])}' for each in pairs) + "}"


def _usual_json(literal: str) -> str:
    if literal[0] in "\"'":
        return f'"{escape(literal[1:-1])}"'
    return PYTHON_WORDS.get(literal, literal)


def _read_keyword_arguments(arguments: _KeywordArguments, region: Region) -> Parse[None]:
    source = region.source
    end = ""
    while end != ")":
        yield from source.skip_space()
        end = yield from source.literal(")")
        if not end:
            keyword = yield from source.look_along(_KEYWORD, MAX_NAME)
            if not keyword:
                raise Malformed
            source.skip(len(keyword))
            yield from source.skip_space()
            yield from source.expect("=")
            yield from source.skip_space()
            arguments.keyword(keyword)
            yield from PythonScanner(source, arguments.value, (")", *region.ends)).read()
            yield from source.skip_space()
            end = yield from source.literal(",", ")")
            if not end:
                if not (yield from source.next_word("]", *region.ends)):
                    raise Malformed
                return


class _KeywordArguments:
    """Writes the arguments of one call; announces it with the first value."""

    def __init__(self, name: str, emitter: Emitter) -> None:
        self._name = name
        self._emitter = emitter
        self._pending = "{"
        self.is_announced = False

    def keyword(self, keyword: str) -> None:
        separator = ", " if self.is_announced else "{"
        self._pending = f'{separator}"{keyword}": '

    def value(self, text: str) -> None:
        if not self.is_announced:
            self._emitter.start_call(self._name)
            self.is_announced = True
        self._emitter.arguments(self._pending + text)
        self._pending = ""

    def close(self) -> None:
        self.value("}")
        self._emitter.end_call()


_ATTRIBUTES = re.compile(r'(?:"[^<>\n]*)?')
_TYPE = re.compile(r'\b(?:string|type)="(\w+)"')
_KEY = re.compile(r"[^<>\n]*")
_QUOTED_KEY = re.compile(r'[^<>\n"]*')
_JSON_TYPES = frozenset({"number", "boolean", "object", "array", "null"})
_TYPES = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


@dataclass(frozen=True)
class XmlGrammar(Grammar):
    """One tag per argument: `<function=f><parameter=a>1</parameter></function>`.

    The function's schema determines an argument's type: a string by default, or JSON if the schema
    has another type that the value fits. The tag's attribute `string` or `type` takes precedence.
    Closing tags may be missing if the next tag starts a line; other text between arguments is
    dropped.

    Attributes:
        calls: text before the name; empty if the marker precedes it.
        tag_end: end of a tag that contains a name or a key; empty if the name needs no end.
        after_name: words that may follow the name.
        parameters: text before a key.
        key_end: end of the tag that contains the key, if not `tag_end`.
        value_start: a tag between key and value.
        value_end: tag after a value; `KEY` stands for the key.
        ends: tags after a call.
        lines: line breaks around a value are layout.
        json_block: tags around arguments that are one JSON object.
        written: text before and after a forced call's arguments; see `guide_each`.
    """

    calls: tuple[str, ...] = ()
    tag_end: str = ""
    after_name: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    key_end: str = ""
    value_start: str = ""
    value_end: str = ""
    ends: tuple[str, ...] = ()
    lines: bool = False
    json_block: tuple[str, str] = ("", "")
    written: tuple[str, str] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        ends = () if "KEY" in self.value_end else (self.value_end,)
        every = (
            *self.after_name,
            *self.parameters,
            self.key_end,
            self.value_start,
            *ends,
            *self.ends,
        )
        return tuple(word for word in every if word.startswith("<") and word.endswith(">"))

    @property
    def openers(self) -> tuple[str, ...]:
        return self.calls

    def fits(self, character: str) -> bool:
        return _begins_name(character) or character in [word[0] for word in self.calls]

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        return [] if self.written is None else guide_each(tools, *self.written)

    def read(self, opener: str, region: Region) -> Parse[None]:
        source = region.source
        while True:
            yield from source.skip_space()
            if self.calls and opener not in self.calls:
                yield from source.expect(*self.calls)
            yield from self._read_call(region)
            yield from source.skip_space()
            opener = yield from source.literal(*self.calls)
            if not opener:
                return

    def _read_call(self, region: Region) -> Parse[None]:
        source = region.source
        name = yield from region.read_name()
        if self.tag_end:
            yield from self._read_attributes(source)
            yield from source.expect(self.tag_end)
        yield from source.skip_space()
        yield from source.literal(*self.after_name)
        yield from source.skip_space()
        block, block_end = self.json_block
        if (yield from source.literal(*filter(None, [block]))) or (
            not self.tag_end and (yield from source.peek()) == "{"
        ):
            yield from region.read_arguments(name)
            yield from source.literal(*filter(None, [block_end]))
            yield from source.close(*self.ends)
        else:
            yield from self._read_parameters(region, region.emitter.tool(name))

    def _read_attributes(self, source: Source) -> Parse[str]:
        attributes = yield from source.look_along(_ATTRIBUTES, MAX_NAME)
        return source.skip(len(attributes))

    def _read_parameters(self, region: Region, tool: Tool) -> Parse[None]:
        source, arguments = region.source, _TaggedArguments(tool, region.emitter)
        words = (*self.parameters, *self.ends, *region.ends)
        while True:
            yield from source.skip_space()
            tag = yield from source.next_word(*words)
            if tag in self.parameters:
                source.skip(len(tag))
                yield from self._read_parameter(region, arguments)
            elif tag:
                if tag in self.ends:
                    source.skip(len(tag))
                arguments.close()
                return
            elif arguments.is_announced:
                source.hold("", MAX_LEFTOVER)
                if not (yield from source.until(markers_of(*words), _ignore, reads=False)):
                    raise Malformed
                source.release()
            else:
                raise Malformed

    def _read_parameter(self, region: Region, arguments: _TaggedArguments) -> Parse[None]:
        source = region.source
        try:
            pattern = _QUOTED_KEY if self.parameters[0].endswith('"') else _KEY
            key = yield from source.look_along(pattern, MAX_NAME)
            if not key.strip():
                raise Malformed
            source.skip(len(key))
            attributes = yield from self._read_attributes(source)
            yield from source.expect(self.key_end or self.tag_end)
            if self.value_start:
                yield from source.skip_space()
                yield from source.expect(self.value_start)
        except Malformed:
            if not arguments.is_announced or source.ends_after(0):
                raise
            return
        ends = self._value_ends(key, region)
        types = arguments.start(html.unescape(key.strip()), attributes)
        if self.lines:
            yield from source.literal("\n")
        if types == {"string"}:
            tag = yield from arguments.read_text(source, ends)
        else:
            tag = yield from arguments.read_value(source, ends, types)
        if tag.removeprefix("\n") == self.value_end.replace("KEY", key):
            source.skip(len(tag))

    def _value_ends(self, key: str, region: Region) -> Markers:
        end = self.value_end.replace("KEY", key)
        own = (end, f"\n{end}") if self.lines else (end,)
        others = (*self.parameters, *self.ends, *region.ends)
        return markers_of(*own, *(f"\n{tag}" for tag in others if not end.startswith(tag)))


class _TaggedArguments:
    """Writes the arguments of one call; announces it with the first key."""

    def __init__(self, tool: Tool, emitter: Emitter) -> None:
        self._tool = tool
        self._emitter = emitter
        self.is_announced = False

    def start(self, key: str, attributes: str) -> frozenset[str]:
        """Start an argument; return its value's possible types."""
        opening = ", " if self.is_announced else "{"
        if not self.is_announced:
            self._emitter.start_call(self._tool.name)
            self.is_announced = True
        self._emitter.arguments(f'{opening}"{escape(key)}": ')
        types = self._tool.argument_types.of(key)
        written = _TYPE.search(attributes)
        if written is None:
            return types
        if written.group(1) in ("true", "string"):
            return types & {"string"} or types
        return types - {"string"} or _JSON_TYPES

    def read_text(self, source: Source, ends: Markers) -> Parse[str]:
        """Read a string value; return the word that ends it, which is not consumed."""
        emitter = self._emitter
        emitter.arguments('"')
        tag = yield from source.until(
            ends, lambda piece: emitter.arguments(escape(piece)), reads=False
        )
        if not tag:
            raise Malformed
        emitter.arguments('"')
        return tag

    def read_value(self, source: Source, ends: Markers, types: frozenset[str]) -> Parse[str]:
        """Read a value of one of the types; return the word that ends it, which is not consumed."""
        pieces: list[str] = []
        source.hold()  # because of its limit
        tag = yield from source.until(ends, pieces.append, reads=False)
        source.release()
        if not tag:
            self._emitter.arguments("".join(pieces))
            raise Malformed
        self._emitter.arguments(_as_json("".join(pieces), types))
        return tag

    def close(self) -> None:
        if self.is_announced:
            self._emitter.arguments("}")
            self._emitter.end_call()
        else:
            self._emitter.whole_call(self._tool.name, "{}")


def _as_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON: of one of the types if possible, otherwise as a string."""
    for scanner in (JsonScanner, PythonScanner):
        value = read_whole(text, scanner)
        if value and _TYPES.get(value[0], "number") in types - {"string"}:
            return value
    return f'"{escape(text)}"'
