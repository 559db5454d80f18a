"""Reasoning at the start of a choice, or between its texts and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtllm_truss.requests import ReasoningWords
from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.source import MAX_HELD, Malformed, Parse, Source, markers_of
from trtllm_truss.tool_calls.tool_format import ToolFormat

FindCalls = Callable[[str], int]
"""Returns the offset of the calls at the end of a text, or its length if there are none."""


@dataclass(frozen=True)
class ReasoningFormat(ReasoningWords):
    """Reasoning between two words.

    White space around the words is layout. Without the second word, the whole choice is reasoning,
    except for whole calls at its very end: models forget to close their reasoning before a call
    (https://github.com/QwenLM/Qwen3/issues/1831). Other calls inside reasoning are reasoning. In a
    choice that only closes reasoning, the text before is text: it has been sent by then.

    Attributes:
        dropped: further control words, which are never part of a choice's text.
        wrappers: pairs of words around the text after the reasoning, which are dropped; the first
            is empty if the word that closes the reasoning takes its place.
        repeats: a choice may contain further reasoning.
    """

    dropped: frozenset[str] = frozenset()
    wrappers: tuple[tuple[str, str], ...] = ()
    repeats: bool = False

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*self.starts, *self.ends))

    @property
    def restarts(self) -> tuple[str, ...]:
        """Words that open further reasoning."""
        return self.starts if self.repeats else ()

    def before(self, tools: ToolFormat) -> ReasoningFormat:
        """Return the reasoning format before calls in another format than the model's."""
        return self

    def parse(
        self,
        source: Source,
        emitter: Emitter,
        tools: ToolFormat | None = None,
        find_calls: FindCalls = len,
    ) -> Parse[None]:
        """Read the reasoning at the start, if there is any.

        Args:
            tools: format of calls, which may start inside it.
        """
        source.hold()
        try:
            yield from source.skip_space()
            word = yield from source.literal(*self.starts, *self.ends)
        except Malformed:
            word = ""
        space = source.release()
        if not word:
            emitter.text(space)
        elif word in self.starts:
            openers = tools.call_openers if tools else ()
            yield from self.read_block(source, emitter, openers, find_calls)
        else:
            emitter.start_reasoning()
            emitter.end_reasoning()
        yield from self._unwrap(source, emitter)

    def read_block(
        self,
        source: Source,
        emitter: Emitter,
        openers: tuple[str, ...] = (),
        find_calls: FindCalls = len,
    ) -> Parse[None]:
        """Read reasoning whose first word was read.

        Args:
            openers: words that start calls.
        """
        emitter.start_reasoning()
        yield from source.skip_space()
        while (yield from source.literal(*self.starts)):
            yield from source.skip_space()
        word = yield from source.until(markers_of(*self.ends, *openers), emitter.reasoning)
        rest = ""
        if word in openers:
            kept = _Kept(emitter, word)
            if not (yield from source.until(markers_of(*self.ends), kept.add)):
                rest = kept.take_calls(find_calls)
            kept.flush()
        emitter.end_reasoning()
        source.unread(rest)

    def _unwrap(self, source: Source, emitter: Emitter) -> Parse[None]:
        wrappers = dict(self.wrappers)
        if "" in wrappers:
            emitter.start_text(wrappers[""])
        if not any(wrappers):
            return
        source.hold()
        try:
            yield from source.skip_space()
            opener = yield from source.literal(*filter(None, wrappers))
        except Malformed:
            opener = ""
        text = source.release()
        if opener:
            emitter.end_reasoning()
            emitter.start_text(wrappers[opener])
        else:
            emitter.text(text)


class _Kept:
    """Reasoning from the first marker of a call on, kept until it is known to continue."""

    def __init__(self, emitter: Emitter, text: str) -> None:
        self._emitter = emitter
        self._pieces = [text]
        self._room = MAX_HELD

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._room -= len(text)
        if self._room < 0:
            self.flush()

    def flush(self) -> None:
        self._emitter.reasoning("".join(self._pieces))
        self._pieces = []

    def take_calls(self, find_calls: FindCalls) -> str:
        """Return the calls at the end, and keep the text before them."""
        text = "".join(self._pieces) if self._room >= 0 else ""
        at = find_calls(text)
        if at < len(text):
            self._pieces = [text[:at]]
        return text[at:]
