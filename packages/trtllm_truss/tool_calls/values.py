"""JSON, Python literals and Gemma's notation, read as they arrive and written as JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import ClassVar

from trtllm_truss.tool_calls.source import (
    MAX_ATOM,
    MAX_DEPTH,
    SPACE,
    Emit,
    Malformed,
    Markers,
    Parse,
    Source,
    run,
)

# Kinds of tokens that may come next: punctuation, `"` for a string, `a` for any other atom.
_VALUE = '{["a'
_FIRST_ITEM = '{["a]'
_COLON = ":"
_NEXT = {"}": ",}", "]": ",]", ")": ",]"}

_PYTHON_STRING = re.compile(r""""([^"\\]+)"|'([^'\\]+)'""")
_PYTHON_PLAIN = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
PLAIN_STRING = re.compile(r'"[^"\\\x00-\x1f]*"')
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ATOM = re.compile(r"[-+.\w]*")
_JSON_ATOM = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_JSON_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PYTHON_NUMBER = re.compile(
    r"[-+]?(?=\.?[0-9])(?:0|[1-9][0-9_]*)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"
)
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_ESCAPES = dict(zip("\\'\"abfnrtv\n", ("\\", "'", '"', *"\a\b\f\n\r\t\v", ""), strict=True))
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
_OCTAL = re.compile(r"[0-7]{1,3}")
_PYTHON_CODE_LENGTHS = {"x": 4, "u": 6, "U": 10}


class TooDeep(Malformed):
    """A value is nested deeper than `MAX_DEPTH`."""


class JsonScanner:
    """Reads one JSON value and passes its text on as it is read.

    Escapes control characters in strings, which JSON forbids but models write. Supplies closing
    brackets that are missing where the value must end: before a bracket of an outer value, or
    before a word in `ends`. Passes on all other text as written; a truncated value is passed on up
    to its end.

    Args:
        emit: receives the value's text.
        ends: words that cannot be part of the value, outside of its strings.
    """

    _kinds: ClassVar = dict(zip('{}[],:" \t\r\n', '{}[],:"    ', strict=True))
    _key: ClassVar = '"'
    _first_key: ClassVar = '"}'

    def __init__(self, source: Source, emit: Emit, ends: Sequence[str] = ()) -> None:
        self._source = source
        self._emit = emit
        self._ends = ends
        self._closers: list[str] = []
        self._expected = _VALUE

    def read(self) -> Parse[None]:
        """Read the value.

        Raises:
            Malformed: it is invalid, too deep, or cut off. Reading stops before the fault.
        """
        self._expected = _VALUE
        is_json = type(self) is JsonScanner and (yield from self._source.peek()) in ("{", "[")
        if is_json and (length := self._source.whole_json()):
            self._emit(self._source.skip(length))
            return
        source = self._source
        while self._expected:
            character = source.next_character or (yield from source.peek())
            kind = self._kinds.get(character, "a")
            if kind == " ":
                self._space(source.take(SPACE))
            elif kind not in self._expected:
                yield from self._repair(character)
            elif kind in '"a':
                is_key = self._expected in (self._key, self._first_key)
                if kind == '"':
                    if not self._is_plain_string():
                        yield from self._string(character)
                else:
                    yield from self._atom(is_key)
                if is_key:
                    self._expected = _COLON
                else:
                    self._end_value()
            else:
                self._punctuate(character, kind)

    def _repair(self, character: str) -> Parse[None]:
        """Supply missing closing brackets before an unexpected character."""
        if self._expected not in _NEXT.values():
            raise Malformed
        if character in self._closers:
            while self._closers[-1] != character:
                self._supply()
        elif character in ("}", "]", ")") or (yield from self._source.next_word(*self._ends)):
            self._supply_all()
        else:
            raise Malformed
        self._expected = _NEXT[self._closers[-1]] if self._closers else ""

    def _supply_all(self) -> None:
        while self._closers:
            self._supply()

    def _supply(self) -> None:
        self._mark("]" if self._closers.pop() in "])" else "}")

    def _punctuate(self, character: str, kind: str) -> None:
        if kind in "{[":
            if len(self._closers) == MAX_DEPTH:
                raise TooDeep
            self._closers.append({"{": "}", "[": "]", "(": ")"}[character])
            self._expected = self._first_key if kind == "{" else _FIRST_ITEM
        elif kind == ",":
            self._expected = self._after_comma()
        elif kind == ":":
            self._expected = _VALUE
        else:
            while self._closers[-1] != character:
                if character not in self._closers:
                    self._supply_all()
                    self._expected = ""
                    return
                self._supply()
            self._closers.pop()
            self._end_value()
        self._source.skip(1)
        self._mark(kind)

    def _end_value(self) -> None:
        self._expected = _NEXT[self._closers[-1]] if self._closers else ""

    def _after_comma(self) -> str:
        return self._key if self._closers[-1] == "}" else _VALUE

    def _space(self, space: str) -> None:
        self._emit(space)

    def _mark(self, kind: str) -> None:
        self._emit(kind)

    def _atom(self, is_key: bool) -> Parse[None]:
        atom = yield from self._source.look_along(_ATOM, MAX_ATOM)
        is_whole = _JSON_ATOM.fullmatch(atom)
        if is_whole or self._source.ends_after(len(atom)):
            self._emit(self._source.skip(len(atom)))
        if not is_whole:
            raise Malformed

    def _is_plain_string(self) -> bool:
        """Read a string without escapes, if it has arrived completely."""
        if string := self._source.take(PLAIN_STRING):
            self._emit(string)
            return True
        return False

    def _string(self, quote: str) -> Parse[None]:
        self._emit(self._source.skip(1))
        while True:
            self._emit(self._source.take(_PLAIN))
            character = yield from self._source.peek()
            if character == quote:
                self._emit(self._source.skip(1))
                return
            if character == "\\":
                yield from self._escape()
            elif not character:
                raise Malformed
            elif character < " ":
                self._emit(escape(self._source.skip(1)))

    def _escape(self) -> Parse[None]:
        text = yield from self._source.look(2)
        length = 6 if text == "\\u" else 2
        text = yield from self._source.look(length)
        is_whole = _JSON_ESCAPE.fullmatch(text)
        if is_whole or len(text) < length:
            self._emit(self._source.skip(len(text)))
        if not is_whole:
            raise Malformed


class PythonScanner(JsonScanner):
    """Reads one Python literal and passes it on as JSON.

    Accepts strings, numbers, lists, tuples (as arrays), dictionaries with string keys, and `True`,
    `False` and `None` in either language's spelling.
    """

    _kinds: ClassVar = JsonScanner._kinds | {"'": '"', "(": "[", ")": "]"}

    def __init__(self, source: Source, emit: Emit, ends: Sequence[str] = ()) -> None:
        super().__init__(source, self._put, ends)
        self._write = emit
        self._comma = ""

    def _put(self, text: str) -> None:
        self._write(self._comma + text)
        self._comma = ""

    def _after_comma(self) -> str:
        return self._first_key if self._closers[-1] == "}" else _FIRST_ITEM

    def _is_plain_string(self) -> bool:
        whole = self._source.match(_PYTHON_STRING)
        if not whole:
            return False
        self._source.skip(1)
        self._put('"')  # announces the call, whose text is held up to here
        self._put(escape(self._source.skip(whole.end() - whole.start() - 1)[:-1]) + '"')
        return True

    def _space(self, space: str) -> None:
        """Drop the source's white space."""

    def _mark(self, kind: str) -> None:
        if kind == ",":
            self._comma = ", "
            return
        if kind in "}]":
            self._comma = ""
        self._put(": " if kind == ":" else kind)

    def _atom(self, is_key: bool) -> Parse[None]:
        atom = yield from self._source.look_along(_ATOM, MAX_ATOM)
        json_atom = PYTHON_WORDS.get(atom, atom)
        is_whole = _JSON_ATOM.fullmatch(json_atom)
        if not is_whole and _PYTHON_NUMBER.fullmatch(atom):
            json_atom = _json_number(atom)
            is_whole = _JSON_ATOM.fullmatch(json_atom)
        if is_whole:
            self._put(json_atom)
        if is_whole or self._source.ends_after(len(atom)):
            self._source.skip(len(atom))
        if not is_whole:
            raise Malformed

    def _string(self, quote: str) -> Parse[None]:
        start = yield from self._source.look(3)
        if start == quote * 3:
            quote = start
        elif start[:2] == quote * 2:
            self._source.skip(2)
            self._put('""')
            return
        self._source.skip(len(quote))
        self._put('"')
        plain = _PYTHON_PLAIN[quote[0]]
        while True:
            text = self._source.take(plain)
            if text:
                self._put(escape(text))
            character = yield from self._source.peek()
            if not character:
                raise Malformed
            if character == "\\":
                yield from self._escape()
            elif character == quote[0]:
                end = yield from self._source.look(len(quote))
                if end == quote:
                    break
                self._put(escape(self._source.skip(1)))
        self._source.skip(len(quote))
        self._put('"')

    def _escape(self) -> Parse[None]:
        text = yield from self._source.look(2)
        code = text[1:]
        if code in _PYTHON_CODE_LENGTHS:
            yield from self._coded(_PYTHON_CODE_LENGTHS[code])
        elif code in _PYTHON_ESCAPES:
            self._source.skip(2)
            self._put(escape(_PYTHON_ESCAPES[code]))
        elif code and code in "01234567":
            text = yield from self._source.look(4)
            octal = _OCTAL.match(text, 1)
            assert octal
            self._source.skip(octal.end())
            self._put(escape(chr(int(octal.group(), 8))))
        else:  # Python keeps the backslash
            self._source.skip(1)
            self._put("\\\\" if code else "")

    def _coded(self, length: int) -> Parse[None]:
        text = yield from self._source.look(length)
        if len(text) < length:
            self._source.skip(len(text))
            raise Malformed
        if not _HEXADECIMAL.fullmatch(text, 2) or int(text[2:], 16) > sys.maxunicode:
            raise Malformed
        self._source.skip(length)
        character = chr(int(text[2:], 16))
        is_surrogate = "\ud800" <= character <= "\udfff"
        self._put(f"\\u{ord(character):04x}" if is_surrogate else escape(character))


_QUOTE = '<|"|>'
_QUOTES = Markers(_QUOTE)
_GEMMA_KEY = re.compile(r"[^:,{}\[\]<>\"\n]*")
_GEMMA_TEXT = re.compile(r"[^,{}\[\]<>\n]*")


class GemmaScanner(JsonScanner):
    """Reads one value in the notation of Gemma 4 and passes it on as JSON.

    Keys are unquoted, texts are delimited by `<|"|>`, and everything else is as in JSON. Also
    accepts JSON's quotes and unquoted texts. Source: the template of google/gemma-4-31B-it.
    """

    _kinds: ClassVar = JsonScanner._kinds | {"<": '"'}
    _key: ClassVar = '"a'
    _first_key: ClassVar = '"a}'

    def _space(self, space: str) -> None:
        """Drop the source's white space."""

    def _mark(self, kind: str) -> None:
        self._emit({",": ", ", ":": ": "}.get(kind, kind))

    def _atom(self, is_key: bool) -> Parse[None]:
        if is_key:
            key = yield from self._source.look_along(_GEMMA_KEY, MAX_ATOM)
            if not key:
                raise Malformed
            self._source.skip(len(key))
            self._emit(f'"{escape(key.strip())}"')
            return
        text = yield from self._source.look_along(_GEMMA_TEXT, MAX_ATOM)
        if not text or self._source.ends_after(len(text)):
            self._emit(self._source.skip(len(text)))
            raise Malformed
        self._source.skip(len(text))
        text = text.strip()
        self._emit(text if _JSON_ATOM.fullmatch(text) else f'"{escape(text)}"')

    def _is_plain_string(self) -> bool:
        return False

    def _string(self, quote: str) -> Parse[None]:
        if quote == '"':
            yield from super()._string(quote)
            return
        yield from self._source.expect(_QUOTE)
        self._emit('"')
        if not (yield from self._source.until(_QUOTES, lambda text: self._emit(escape(text)))):
            raise Malformed
        self._emit('"')


def _json_number(number: str) -> str:
    """Return a Python number in JSON's form: digits on both sides of the point, no `+` signs."""
    number = number.replace("_", "").removeprefix("+")
    number = re.sub(r"(?<![0-9])\.", "0.", number)
    return re.sub(r"\.(?![0-9])", ".0", number)


def escape(text: str) -> str:
    """Return text as written between the quotes of a JSON string."""
    return encode_basestring(text)[1:-1]


def read_whole(text: str, scanner: type[JsonScanner] = JsonScanner) -> str | None:
    """Return a value as JSON text.

    Args:
        text: the value, surrounded at most by white space.
        scanner: language of the value.

    Returns:
        None if it is not a value.
    """
    text = text.strip()
    if len(text) <= MAX_ATOM and _JSON_ATOM.fullmatch(text):
        return text
    source = Source()
    source.feed(text)
    source.end()
    pieces: list[str] = []
    try:
        run(scanner(source, pieces.append).read())
    except Malformed:
        return None
    return "".join(pieces) if source.ends_after(0) else None
