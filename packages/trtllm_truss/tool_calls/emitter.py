"""Emit the events of one choice as they become certain, with text free of control words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ParsedText,
    ReasoningDelta,
    Tool,
)
from trtllm_truss.tool_calls.source import SPACE, SPACES, Emit, Parse, Source, markers_of

MAX_SPACE = 1024
"""Maximum white space that is held until the following text is known; longer runs count as text."""

_Delta = type[ParsedText] | type[ReasoningDelta] | type[ArgumentsDelta]
_LONGEST_WORD = 64
_QUOTES = ("`", '"', "'")


@dataclass(frozen=True)
class ControlWords:
    """Words that are not part of a choice's text.

    Attributes:
        dropped: never part of the text.
        starts: open reasoning. Inside the text they count as text, and so does the following word
            of `ends`.
        ends: close reasoning. Dropped if none of `starts` precedes, unless quoted.
        wrappers: pairs around the whole text. The first word of a pair is dropped at the start, and
            then the second at the end.
    """

    dropped: frozenset[str] = frozenset()
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    wrappers: tuple[tuple[str, str], ...] = ()


class _TextFilter:
    """Removes control words from the text of one choice.

    A word that is formed where others were removed is removed too.

    Args:
        emit: receives the remaining text.
        before: returns the end of the emitted text, as long as a word.
    """

    def __init__(self, words: ControlWords, emit: Emit, before: Callable[[], str]) -> None:
        self._words = words
        self._put = emit
        self._before = before
        self._closers = {
            closer: closer.strip() for _, end in words.wrappers for closer in (end, f"\n{end}")
        }
        self._all = markers_of(*words.dropped, *words.starts, *words.ends, *self._closers)
        self._taken_out = markers_of(*words.dropped, *words.ends)
        self._is_seam = False
        self._open_wrapper = ""
        self._open_starts = 0
        self._begin()

    def _begin(self) -> None:
        self._source = Source()
        self._run = self._read()
        self._is_idle = self._is_in_text = True

    def feed(self, text: str) -> None:
        """Read more text."""
        if self._is_plain(text):
            self._is_seam = False
            self._put(text)
            return
        self._is_idle = False
        self._source.feed(text)
        next(self._run, None)

    def _is_plain(self, text: str) -> bool:
        """Return True if no word starts or continues in a text; most text takes this shortcut."""
        if not self._is_in_text or self._source.has_text() or self._all.starts.search(text):
            return False
        return not (self._is_seam and self._taken_out.unfinished(self._before()))

    def flush(self) -> None:
        """Emit the held-back text; no word continues after it."""
        if not self._is_idle:
            self._source.end()
            next(self._run, None)
            self._begin()
        self._is_seam = True

    def open_wrapper(self, closer: str) -> None:
        """Drop a closing word at the end of the text."""
        self._open_wrapper = closer

    def _read(self) -> Parse[None]:
        self._is_in_text = False
        while True:
            yield from self._close_seam()
            self._is_in_text = True
            word = yield from self._source.until(self._all, self._put)
            self._is_in_text = False
            if not word:
                return
            if word in self._words.dropped:
                self._is_seam = True
            elif word in self._words.starts:
                self._open_starts += 1
                self._put(word)
            elif word in self._words.ends:
                yield from self._read_end(word)
            else:
                yield from self._read_closer(word)

    def _close_seam(self) -> Parse[None]:
        """Drop the remainders of words that start before removed text."""
        while self._is_seam:
            self._is_seam = False
            for beginning in self._taken_out.unfinished(self._before()):
                rests = self._taken_out.rests(beginning)
                if (yield from self._source.literal(*rests)):
                    self._is_seam = True

    def _read_end(self, word: str) -> Parse[None]:
        quote = self._before()[-1:]
        if self._open_starts:
            self._open_starts -= 1
            self._put(word)
        elif quote in _QUOTES and (yield from self._source.peek()) == quote:
            self._put(word)
        else:
            self._is_seam = True

    def _read_closer(self, word: str) -> Parse[None]:
        text = word
        if self._closers[word] == self._open_wrapper:
            while len(text) < MAX_SPACE and (yield from self._source.peek()) in SPACES:
                text += self._source.take(SPACE)
            if not (yield from self._source.peek()):
                self._open_wrapper = ""
                return
        self._put(text)


class Emitter:
    """Collects events between two calls of `drain`.

    Drops white space that is layout: before a call with no text before it, after the last call, and
    around reasoning markers. Drops control words from the text.

    Args:
        source: the source; its held text is dropped when a call is announced.
        tools: the functions that may be called; None allows any name.
        words: control words of the choice's formats.

    Attributes:
        tools: see above.
        calls: number of announced calls.
        line_is_blank: the current line has only white space so far.
    """

    def __init__(
        self, source: Source, tools: Sequence[Tool] | None, words: ControlWords | None = None
    ) -> None:
        self._source = source
        self._tools = None if tools is None else {tool.name: tool for tool in tools}
        self._filter = _TextFilter(words, self._add_text, self._last_text) if words else None
        self._tail = ""
        self._events: list[Event] = []
        self._delta: _Delta | None = None
        self._pieces: list[str] = []
        self._in_call = False
        self._has_reasoned = False
        self._has_text = False
        self._before: Literal["start", "call", "reasoning", "text"] = "start"
        self._space = ""
        self.calls = 0
        self.line_is_blank = True

    @property
    def names(self) -> Collection[str]:
        """The names of the functions that may be called; empty if any may."""
        return self._tools or ()

    def find(self, name: str) -> str:
        """Return the name of the function that a call refers to; empty if it may not be called.

        Models also write the namespace `functions`, from gpt-oss and Kimi, in other formats.
        """
        for each in (name, name.removeprefix("functions.")):
            if each and (self._tools is None or each in self._tools):
                return each
        return ""

    def tool(self, name: str) -> Tool:
        """Return the function with that name; without parameters if unknown."""
        return (self._tools or {}).get(name, Tool(name, {}))

    def text(self, text: str) -> None:
        """Add text."""
        if not text:
            return
        _, newline, line = text.rpartition("\n")
        is_blank = not line or line.isspace()
        self.line_is_blank = is_blank and (bool(newline) or self.line_is_blank)
        if self._filter:
            self._filter.feed(text)
        else:
            self._add_text(text)

    def _add_text(self, text: str) -> None:
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
        self._tail = (self._tail + text[-_LONGEST_WORD:])[-_LONGEST_WORD:]
        self._add(ParsedText, text)

    def _last_text(self) -> str:
        return self._tail + self._space

    def start_text(self, wrapper: str = "") -> None:
        """Start a block of text, separated by a line break from the block before.

        Args:
            wrapper: the word at the end of the whole text, which is dropped there.
        """
        self._end_text()
        if wrapper and self._filter:
            self._filter.open_wrapper(wrapper)
        if self._has_text:
            self._before, self._space = "call", "\n"

    def start_reasoning(self) -> None:
        """Start a block of reasoning, separated by a line break from the block before."""
        self._end_text()
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
        self._source.drop()
        self._end_text()
        self._flush()
        self._space = ""
        self._events.append(CallStarted(self.calls, name))
        self._in_call = True

    def arguments(self, json: str) -> None:
        """Add to the arguments of the announced call."""
        self._add(ArgumentsDelta, json)

    def end_call(self, *, complete: bool = True) -> None:
        """Finish the announced call and hold the following text."""
        self._flush()
        self._events.append(CallEnded(self.calls, complete))
        self.calls += 1
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
        """Finish the announced call, if there is one, as incomplete."""
        if self._in_call:
            self.end_call(complete=False)

    def finish(self) -> None:
        """Finish the choice."""
        self._end_text()
        if self._before == "start":
            self._add(ParsedText, self._space)
        self._space = ""

    def drain(self) -> list[Event]:
        """Return the events since the last call, with adjacent deltas merged."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _end_text(self) -> None:
        if self._filter:
            self._filter.flush()

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
                self._events.append(ArgumentsDelta(self.calls, text))
            elif self._delta is ReasoningDelta:
                self._events.append(ReasoningDelta(text))
            else:
                self._events.append(ParsedText(text))
        self._delta, self._pieces = None, []
