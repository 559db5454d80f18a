"""Calls written as tags, one for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_truss.tool_calls.events import Emitter, Tool
from trtllm_truss.tool_calls.guides import CallGuide
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source
from trtllm_truss.tool_calls.tool_format import MAX_NAME, MarkerFormat, read_name
from trtllm_truss.tool_calls.values import JsonScanner, PythonScanner, escape, read_whole

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
