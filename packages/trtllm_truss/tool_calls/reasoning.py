"""Reasoning at the beginning of an answer, or between its texts and calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtllm_truss.requests import ReasoningWords
from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.source import MAX_HELD, Malformed, Parse, Source, markers_of
from trtllm_truss.tool_calls.tool_format import ToolFormat

FindCalls = Callable[[str], int]
"""Returns the offset of the calls that end a text; its length if none do."""


@dataclass(frozen=True)
class ReasoningFormat(ReasoningWords):
    """Reasoning between two words.

    White space around the words is layout. Without the second word all of the answer is reasoning,
    except for whole calls at its very end: models forget to end their reasoning before a call
    (https://github.com/QwenLM/Qwen3/issues/1831). Other calls inside of reasoning are reasoning.
    In an answer that only ends reasoning, what stands before is text: it has been sent when the end
    shows.

    Attributes:
        dropped: further control words, which are never part of an answer's text.
        wrappers: pairs of words around the text behind the reasoning, which are dropped; the first
            is empty where the word that ends the reasoning takes its place.
        repeats: whether an answer may have further reasoning.
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
        """Words that begin further reasoning."""
        return self.starts if self.repeats else ()

    def before(self, tools: ToolFormat) -> ReasoningFormat:
        """Return the format of reasoning in front of calls in another format than the model's."""
        return self

    def parse(
        self,
        source: Source,
        emitter: Emitter,
        tools: ToolFormat | None = None,
        find_calls: FindCalls = len,
    ) -> Parse[None]:
        """Read the reasoning at the beginning, if there is any.

        Args:
            tools: the format of calls, which may begin inside of it.
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
        """Read reasoning, whose first word is read.

        Args:
            openers: words that begin calls.
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
    """Reasoning from the first marker of a call on, which is kept until it is known to go on."""

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
        """Return the calls at the end, and keep what stands before them."""
        text = "".join(self._pieces) if self._room >= 0 else ""
        at = find_calls(text)
        if at < len(text):
            self._pieces = [text[:at]]
        return text[at:]
