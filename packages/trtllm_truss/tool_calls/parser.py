"""The parser of one answer."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_truss.tool_calls.events import Emitter, Event, ReasoningDelta, TextDelta, Tool
from trtllm_truss.tool_calls.reasoning import ReasoningFormat
from trtllm_truss.tool_calls.source import Markers, Parse, Source
from trtllm_truss.tool_calls.tool_format import ToolFormat


class OutputParser:
    """Splits the text of one answer into text, reasoning and tool calls.

    With adjacent deltas merged, the events do not depend on how the text is cut. Holds back only
    text that may still be a marker or the beginning of a call.

    Args:
        tools: how calls are written; None reads none.
        reasoning: how reasoning is written; None reads none, except with harmony, which always has.
        offered: the functions that may be called. None allows any name.
        parallel: whether the answer may have several calls; those after the first are dropped.
    """

    def __init__(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None = None,
        offered: Sequence[Tool] | None = None,
        *,
        parallel: bool = True,
    ) -> None:
        self._parallel = parallel
        self._source = Source()
        self._emitter = Emitter(self._source, offered if tools else ())
        self._parse = self._read(tools, reasoning)

    def feed(self, text: str) -> list[Event]:
        """Read more text.

        Returns:
            The new events; often one.
        """
        self._source.feed(text)
        next(self._parse, None)
        return self._drain()

    def finish(self) -> list[Event]:
        """End the text.

        Returns:
            The last events. An announced call that is not whole ends with `complete=False`.
        """
        self._source.end()
        next(self._parse, None)
        self._emitter.finish()
        return self._drain()

    def _drain(self) -> list[Event]:
        events = self._emitter.drain()
        return events if self._parallel else [event for event in events if _is_kept(event)]

    def _read(self, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> Parse[None]:
        if reasoning:
            yield from reasoning.parse(self._source, self._emitter)
        if tools:
            yield from tools.parse(self._source, self._emitter)
        yield from self._source.until(Markers(), self._emitter.text)


def _is_kept(event: Event) -> bool:
    return isinstance(event, TextDelta | ReasoningDelta) or event.index == 0
