"""Calls of DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_truss.tool_calls.events import Emitter, Tool
from trtllm_truss.tool_calls.guides import CallGuide, guide_each
from trtllm_truss.tool_calls.json_format import read_arguments
from trtllm_truss.tool_calls.source import Malformed, Parse, Source
from trtllm_truss.tool_calls.tool_format import MAX_NAME, NAME, MarkerFormat, read_name

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
