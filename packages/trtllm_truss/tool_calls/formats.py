"""Calls written as JSON objects, in a marker or bare, as Python, or as one tag per argument."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from json import loads

from trtllm_truss.tool_calls.events import Emitter, Malformed, Markers, Parse, Source, Tool
from trtllm_truss.tool_calls.tool_format import (
    MAX_NAME,
    NAME,
    CallGuide,
    MarkerFormat,
    call_schema,
    guide_each,
    read_name,
)
from trtllm_truss.tool_calls.values import JsonScanner, PythonScanner, escape, read_whole

_KEYWORD = re.compile(r"\w*")


@dataclass(frozen=True)
class PythonicFormat(MarkerFormat):
    """A list of calls with keyword arguments: `[f(a=1, b="x"), g()]`.

    The list must begin a line. Arguments are literals, in Python's spelling or JSON's.
    Llama 4 may put the list between `<|python_start|>` and `<|python_end|>`. Source: Meta's prompt
    formats of Llama 3.2 and 4 (https://www.llama.com/docs/model-cards-and-prompt-formats), vLLM's
    `tool_chat_template_llama3.2_pythonic.jinja` and `tool_chat_template_llama4_pythonic.jinja`.
    """

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Return nothing: the arguments are not JSON."""
        return []

    def read(self, marker: str, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the calls that follow a marker."""
        if marker not in self.line_markers:
            yield from source.skip_space()
            yield from source.expect("[")
        separator = ","
        while separator == ",":
            yield from source.skip_space()
            yield from read_python_call(source, emitter)
            yield from source.skip_space()
            separator = yield from source.expect(",", "]")
        source.forget()
        yield from source.close(*self.closers)


def read_python_call(source: Source, emitter: Emitter) -> Parse[None]:
    """Read one call: a name, and keyword arguments in parentheses.

    Raises:
        Malformed: it is none, cut off, or its function is not offered.
    """
    name = yield from read_name(source, emitter)
    yield from source.expect("(")
    arguments = _Arguments(name, emitter)
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
            yield from PythonScanner(source, arguments.value).read()
            yield from source.skip_space()
            end = yield from source.expect(",", ")")
    arguments.close()


class _Arguments:
    """Writes the arguments of one call; announces it with the first value."""

    def __init__(self, name: str, emitter: Emitter) -> None:
        self._name = name
        self._emitter = emitter
        self._pending = "{"
        self._is_announced = False

    def keyword(self, keyword: str) -> None:
        separator = ", " if self._is_announced else "{"
        self._pending = f"{separator}{json.dumps(keyword, ensure_ascii=False)}: "

    def value(self, text: str) -> None:
        if not self._is_announced:
            self._emitter.start_call(self._name)
            self._is_announced = True
        self._emitter.arguments(self._pending + text)
        self._pending = ""

    def close(self) -> None:
        self.value("}")
        self._emitter.end_call()


_NAME_KEYS = {"name", "function"}
_ARGUMENT_KEYS = {"arguments", "parameters"}
_CALL_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"type", "id"}
_CALL_ID = re.compile(r"[0-9A-Za-z]*")


@dataclass(frozen=True)
class JsonFormat(MarkerFormat):
    r"""Objects `{"name": …, "arguments": {…}}`, alone or in an array, after a marker or bare.

    Accepts keys in any order, `parameters` for `arguments`, and further keys: models write all of
    them even if their template does not. Arguments before the name are held until the name is
    known.
    They may be `null` for an empty object, or JSON in a string; after a marker they are optional.

    * Hermes and Qwen: `<tool_call>\n{…}\n</tool_call>`, repeated. Source: the templates of
      NousResearch/Hermes-2-Pro and Qwen/Qwen3, vLLM's `tool_chat_template_hermes.jinja`, which
      writes the arguments before the name.
    * Llama 3: `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or bare. Source: Meta's
      prompt format of Llama 3.1 (https://www.llama.com/docs/model-cards-and-prompt-formats), vLLM's
      `tool_chat_template_llama3.1_json.jinja` and its parser, which takes several with `;`. Llama 4
      puts it between `<|python_start|>` and `<|python_end|>`.
    * Mistral up to Small 3.1: `[TOOL_CALLS] [{…, "id": …}, …]`. Source: the template of
      mistralai/Mistral-Small-3.1-24B-Instruct-2503.
    * Granite 3: `<|tool_call|>[…]`, `<tool_call>[…]` in 3.0; Granite 4 as Hermes. Source: the
      templates of ibm-granite/granite-3.3-2b-instruct and granite-4.0.
    * Phi-4-mini: `<|tool_call|>[…]<|/tool_call|>` or `functools[…]`. Source: the model's card, and
      vLLM's `tool_chat_template_phi4_mini.jinja`.

    Attributes:
        separators: words that may divide calls outside an array.
        prefix: text before a forced call.
        suffix: text after it.
        writes_array: whether a forced call is in an array.
        arguments_key: the key of the arguments in a forced call.
    """

    separators: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""
    writes_array: bool = False
    arguments_key: str = "arguments"

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        schema = call_schema(
            tools,
            arguments_key=self.arguments_key,
            parallel=parallel if self.writes_array else None,
        )
        return [CallGuide(self.prefix, schema, self.suffix)]

    def read(self, marker: str, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the calls that follow a marker."""
        is_bare = marker in self.line_markers
        opener = marker
        if not is_bare:
            yield from source.skip_space()
            opener = yield from source.literal("{", "[")
        if opener == "[":
            yield from _read_array(source, emitter, is_bare)
        elif opener == "{":
            yield from self._read_objects(source, emitter, is_bare)
        else:
            yield from self._read_other(source, emitter)
        yield from source.close(*self.closers)

    def _read_objects(self, source: Source, emitter: Emitter, is_bare: bool) -> Parse[None]:
        while True:
            yield from _Call(source, emitter, is_bare).read()
            yield from source.skip_space()
            separator = yield from source.literal(*self.separators)
            yield from source.skip_space()
            if not (yield from source.literal("{")):
                if separator:
                    raise Malformed
                return

    def _read_other(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read what is neither an object nor an array."""
        raise Malformed


@dataclass(frozen=True)
class LlamaFormat(JsonFormat):
    """Llama 3: also `<|python_tag|>f(a=1)`, written by Llama 3.3.

    Source: https://github.com/meta-llama/llama-models/issues/266.
    """

    def _read_other(self, source: Source, emitter: Emitter) -> Parse[None]:
        yield from read_python_call(source, emitter)


@dataclass(frozen=True)
class MistralFormat(JsonFormat):
    """Mistral: also `[TOOL_CALLS]name[ARGS]{…}` since Small 3.2, with `[CALL_ID]…` before `[ARGS]`.

    Source: the templates of mistralai/Mistral-Small-3.2 and Ministral-3; tokenizer version 11 has
    no `[ARGS]`.

    Attributes:
        writes_names: whether a forced call has the newer form.
    """

    writes_names: bool = False

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return super().special_tokens | {"[ARGS]", "[CALL_ID]"}

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        if not self.writes_names:
            return super().guides(tools, parallel=parallel)
        return guide_each(tools, lambda name: (f"[TOOL_CALLS]{name}[ARGS]", ""))

    def _read_other(self, source: Source, emitter: Emitter) -> Parse[None]:
        name = yield from read_name(source, emitter)
        if (yield from source.literal("[ARGS]", "[CALL_ID]")) == "[CALL_ID]":
            call_id = yield from source.look_along(_CALL_ID, 64)
            source.skip(len(call_id))
            yield from source.expect("[ARGS]")
        yield from read_arguments(name, source, emitter)


def read_arguments(name: str, source: Source, emitter: Emitter) -> Parse[None]:
    """Read a JSON object as the arguments of a function.

    Raises:
        Malformed: it is none, or cut off.
    """
    yield from source.skip_space()
    if (yield from source.peek()) != "{":
        raise Malformed
    emitter.start_call(name)
    yield from JsonScanner(source, emitter.arguments).read()
    emitter.end_call()


def _read_array(source: Source, emitter: Emitter, is_bare: bool) -> Parse[None]:
    """Read calls up to the closing bracket; the opening one is read."""
    separator = ","
    while separator == ",":
        yield from source.skip_space()
        yield from source.expect("{")
        yield from _Call(source, emitter, is_bare).read()
        yield from source.skip_space()
        separator = yield from source.expect(",", "]")
    source.forget()


class _Call:
    """Reads the object of one call, whose opening brace is read.

    Args:
        is_bare: whether the object must have arguments to count as a call.
    """

    def __init__(self, source: Source, emitter: Emitter, is_bare: bool) -> None:
        self._source = source
        self._emitter = emitter
        self._is_bare = is_bare
        self._name = ""
        self._arguments: str | None = None
        self._is_done = False
        self._is_nested = False

    def read(self) -> Parse[None]:
        """Read to the closing brace.

        Raises:
            Malformed: the object is broken, cut off or no call of an offered function.
        """
        yield from self._members()
        if not self._is_done:
            if self._is_bare or not self._name:
                raise Malformed
            self._emitter.whole_call(self._name, "{}")
        self._source.forget()

    def _members(self) -> Parse[None]:
        separator = ","
        while separator == ",":
            yield from self._source.skip_space()
            key = yield from self._string()
            yield from self._source.skip_space()
            yield from self._source.expect(":")
            yield from self._source.skip_space()
            yield from self._member(key)
            yield from self._source.skip_space()
            separator = yield from self._source.expect(",", "}")

    def _member(self, key: str) -> Parse[None]:
        if self._is_bare and key not in _CALL_KEYS:
            raise Malformed  # another object: emit it without waiting for its end
        character = yield from self._source.peek()
        if key == "function" and character == "{" and not self._is_nested:
            # The shape of OpenAI's API: {"type": "function", "function": {…}}.
            self._is_nested = True
            self._source.skip(1)
            yield from self._members()
        elif key in _NAME_KEYS and not self._name:
            self._name = yield from self._string()
            if not self._emitter.offers(self._name):
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
            yield from read_arguments(self._name, self._source, self._emitter)
            self._is_done = True
            return
        value = yield from self._value()
        if character == '"':
            value = read_whole(loads(value) or "{}") or ""
        elif value == "null":
            value = "{}"
        if not value.startswith("{"):
            raise Malformed
        self._arguments = value

    def _string(self) -> Parse[str]:
        if (yield from self._source.peek()) != '"':
            raise Malformed
        text: str = loads((yield from self._value()))
        return text

    def _value(self) -> Parse[str]:
        pieces: list[str] = []
        yield from JsonScanner(self._source, pieces.append).read()
        return "".join(pieces)


def _ignore(text: str) -> None:
    """Discard text."""


_CALLS_BEGIN = "<｜tool▁calls▁begin｜>"
_CALLS_END = "<｜tool▁calls▁end｜>"
_BEGIN = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_END = "<｜tool▁call▁end｜>"


@dataclass(frozen=True)
class DeepSeekFormat(MarkerFormat):
    r"""Calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`.

    * V3, R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{…}\n```<｜tool▁call▁end｜>`.
      Source: the templates of deepseek-ai/DeepSeek-V3 and R1, vLLM's
      `tool_chat_template_deepseekv3.jinja`.
    * V3.1: `<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`. Source: the template of
      deepseek-ai/DeepSeek-V3.1.

    Each name reads both forms. The outer markers are optional.

    Attributes:
        is_fenced: whether a forced call has the form of V3.
    """

    markers: tuple[str, ...] = (_CALLS_BEGIN, _BEGIN)
    closers: tuple[str, ...] = (_CALLS_END,)
    is_fenced: bool = False

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return super().special_tokens | {_SEPARATOR, _END}

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        return guide_each(tools, self._affixes)

    def _affixes(self, name: str) -> tuple[str, str]:
        begin, end = _CALLS_BEGIN + _BEGIN, _END + _CALLS_END
        if self.is_fenced:
            return f"{begin}function{_SEPARATOR}{name}\n```json\n", f"\n```{end}"
        return f"{begin}{name}{_SEPARATOR}", end

    def read(self, marker: str, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the calls that follow a marker."""
        if marker == _CALLS_BEGIN:
            yield from source.skip_space()
            yield from source.expect(_BEGIN)
        opening = _BEGIN
        while opening:
            yield from self._read_call(source, emitter)
            yield from source.skip_space()
            opening = yield from source.literal(_BEGIN)
        yield from source.close(*self.closers)

    def _read_call(self, source: Source, emitter: Emitter) -> Parse[None]:
        name = yield from source.look_along(NAME, MAX_NAME)
        source.skip(len(name))
        yield from source.expect(_SEPARATOR)
        yield from source.skip_space()
        if (yield from source.peek()) != "{":
            name = yield from read_name(source, emitter)
            yield from source.skip_space()
            if (yield from source.literal("```")):
                yield from source.literal("json")
        elif not emitter.offers(name):
            raise Malformed
        yield from read_arguments(name, source, emitter)
        yield from source.close("```")
        yield from source.close(_END)


_PARAMETER = "<parameter="
_FUNCTION = "<function="
_KEY = re.compile(r"[^<>\n]*")
_VALUE_ENDS = Markers(
    "\n</parameter>", "</parameter>", f"\n{_PARAMETER}", "\n</function>", "\n</tool_call>"
)
_TYPES = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


@dataclass(frozen=True)
class XmlFormat(MarkerFormat):
    r"""`<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>`.

    The line break after an opening tag and before a closing one is layout. The function's schema
    decides the type of an argument: a string by default, JSON if the schema has another type and
    the value fits it. Accepts a missing `</parameter>` if the next tag begins a line, and a missing
    `<tool_call>`: Qwen3-Coder drops both (https://github.com/ollama/ollama/pull/17914). Seed-OSS
    names the outer tag `seed:tool_call`.
    Source: the templates of Qwen/Qwen3-Coder-30B-A3B-Instruct and ByteDance-Seed/Seed-OSS-36B.
    """

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Return nothing: the arguments are not JSON."""
        return []

    def read(self, marker: str, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the calls that follow a marker."""
        yield from source.skip_space()
        if marker != _FUNCTION:
            yield from source.expect(_FUNCTION)
        opening = _FUNCTION
        while opening:
            name = yield from read_name(source, emitter)
            yield from source.expect(">")
            yield from self._read_parameters(emitter.tool(name), source, emitter)
            yield from source.skip_space()
            opening = yield from source.literal(_FUNCTION)
        yield from source.close(*self.closers)

    def _read_parameters(self, tool: Tool, source: Source, emitter: Emitter) -> Parse[None]:
        yield from source.skip_space()
        tag = yield from source.expect(_PARAMETER, "</function>")
        opening = "{"
        while tag == _PARAMETER:
            key = yield from source.look_along(_KEY, MAX_NAME)
            if not key.strip():
                raise Malformed
            source.skip(len(key))
            yield from source.expect(">")
            if opening == "{":
                emitter.start_call(tool.name)
            key = key.strip()
            emitter.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
            opening = ", "
            tag = yield from _read_value(tool.argument_types.of(key), source, emitter)
            if tag == "</parameter>":
                yield from source.skip_space()
                tag = yield from source.expect(_PARAMETER, "</function>", "</tool_call>")
        if opening == "{":
            emitter.start_call(tool.name)
        emitter.arguments("{}" if opening == "{" else "}")
        emitter.end_call()


def _read_value(types: frozenset[str], source: Source, emitter: Emitter) -> Parse[str]:
    """Read a value and return the tag after it."""
    yield from source.literal("\n")
    if types == {"string"}:
        emitter.arguments('"')
        tag = yield from source.until(_VALUE_ENDS, lambda piece: emitter.arguments(escape(piece)))
        emitter.arguments('"' if tag else "")
    else:
        pieces: list[str] = []
        source.hold()  # for its limit
        tag = yield from source.until(_VALUE_ENDS, pieces.append)
        source.release()
        if tag:
            emitter.arguments(_as_json("".join(pieces), types))
    if not tag:
        raise Malformed
    return tag.lstrip()


def _as_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON: of one of the types if it can be, else as a string."""
    for scanner in (JsonScanner, PythonScanner):
        value = read_whole(text, scanner)
        if value and _TYPES.get(value[0], "number") in types - {"string"}:
            return value
    return f'"{escape(text)}"'
