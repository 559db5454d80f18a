"""Calls written as Python."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_truss.tool_calls.events import Emitter, Tool
from trtllm_truss.tool_calls.guides import CallGuide
from trtllm_truss.tool_calls.source import Malformed, Parse, Source
from trtllm_truss.tool_calls.tool_format import MAX_NAME, MarkerFormat, read_name
from trtllm_truss.tool_calls.values import PythonScanner

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
