"""Events of one answer, collected and merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    TextDelta,
    Tool,
)
from trtllm_truss.tool_calls.source import Source

MAX_SPACE = 1024
"""White space that is held until it is known what follows; a longer run counts as text."""

_Delta = type[TextDelta] | type[ReasoningDelta] | type[ArgumentsDelta]


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
        self._add(TextDelta, text)

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
            self._add(TextDelta, self._space)
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
                self._events.append(TextDelta(text))
        self._delta, self._pieces = None, []
