"""Formats whose calls start with a marker in the text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trtllm_truss.tool_calls.emitter import MAX_SPACE, Emitter
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.grammars import (
    LEFTOVER_CHARACTERS,
    MAX_NAME,
    NAME,
    Grammar,
    Region,
    close_calls,
)
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source, markers_of
from trtllm_truss.tool_calls.tool_format import CallGuide, FurtherReasoning, ToolFormat

if TYPE_CHECKING:
    pass

_CONTROL_WORD = re.compile(r'<[^="]+>|\[[A-Z_]+\]|\]<\][^"]+')
"""Markers that are control words, such as `<tool_call>` and `[ARGS]`.

`functools` and `<function=` are text.
"""


@dataclass(frozen=True)
class MarkerFormat(ToolFormat):
    """Calls behind markers.

    Attributes:
        grammars: the ways to write calls; the first matching one is tried, and the first one with a
            guide forces calls.
        markers: words that start calls wherever they occur; several may follow one another.
        line_markers: characters that may start calls at the start of a line.
        closers: words that may follow calls.
        implied: a marker at the end of the prompt.
        has_header: a function's name may occur between two markers.
        tokens: further control words.
        described_by: further words of prompts that describe the format.
    """

    grammars: tuple[Grammar, ...]
    markers: tuple[str, ...] = ()
    line_markers: str = ""
    closers: tuple[str, ...] = ()
    implied: str = ""
    has_header: bool = False
    tokens: tuple[str, ...] = ()
    described_by: tuple[str, ...] = ()

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        words = (word for grammar in self.grammars for word in grammar.words)
        return frozenset((*self.markers, *self.closers, *self.tokens, *words))

    @property
    def dropped(self) -> frozenset[str]:
        """Control words, which are never part of a choice's text."""
        between = (word for grammar in self.grammars for word in grammar.control_words)
        words = filter(_CONTROL_WORD.fullmatch, (*self.markers, *self.closers, *between))
        return frozenset((*words, *self.tokens))

    @property
    def signs(self) -> frozenset[str]:
        """Words of a prompt that describes the format."""
        return frozenset((*self.markers, *self.described_by))

    @property
    def call_openers(self) -> tuple[str, ...]:
        return tuple(marker for marker in self.markers if not marker.isalpha())

    @cached_property
    def _marker_run(self) -> re.Pattern[str]:
        """Markers followed by another marker."""
        marker = rf"[ \t\r\n]*(?:{markers_of(*self.markers).pattern.pattern})"
        return re.compile(rf"(?:{marker}(?={marker}))*")

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        found = (grammar.guides(tools, parallel=parallel) for grammar in self.grammars)
        return next(filter(None, found), [])

    def parse(
        self, source: Source, emitter: Emitter, reasoning: FurtherReasoning | None = None
    ) -> Parse[None]:
        """Read text and calls to the end."""
        starts = reasoning.restarts if reasoning else ()
        in_line = markers_of(*self.markers, *starts, *("\n" if self.line_markers else ()))
        at_line = markers_of(*self.markers, *starts, *self.line_markers)
        ends = (*self.closers, *self.markers)
        region, bare = (Region(source, emitter, ends, is_bare) for is_bare in (False, True))
        regions = {
            **dict.fromkeys(self.markers, region),
            **dict.fromkeys(self.line_markers, bare),
        }
        if self.implied:
            yield from self._attempt(self.implied, region)
        while marker := (
            yield from source.until(at_line if emitter.line_is_blank else in_line, emitter.text)
        ):
            if reasoning and marker in starts:
                yield from reasoning.read_block(source, emitter)
                continue
            if marker == "\n" or (marker in self.line_markers and not emitter.line_is_blank):
                emitter.text(marker)
                continue
            if not self._read_usual(marker, at_line, regions):
                yield from self._attempt(marker, regions[marker])

    @cached_property
    def _behind_usual(self) -> re.Pattern[str]:
        """The text behind calls up to what cannot belong to them; the layout in it is a group."""
        closers = markers_of(*self.closers).pattern.pattern
        firsts = {word[0] for word in self.closers}
        others = re.escape("".join({*firsts, *LEFTOVER_CHARACTERS, "{"}))
        markers = (
            marker
            for marker in (*self.markers, *self.line_markers)
            if marker[0] not in (*LEFTOVER_CHARACTERS, "{")
            and not any(word.startswith(marker) or marker.startswith(word) for word in self.closers)
        )
        follows = rf"[^{others}]|{markers_of(*markers).pattern.pattern}"
        space = r"[ \t\r\n]*"
        return re.compile(rf"(?:{space}(?:{closers}))?({space})(?={follows})")

    def _read_usual(self, marker: str, markers: Markers, regions: Mapping[str, Region]) -> bool:
        """Read calls in their usual form as `_attempt` does, in a third of the time.

        Args:
            markers: what may begin the next calls, or reasoning.
            regions: where calls stand, by their markers.

        Returns:
            False, and nothing is read, if the first have another form, or have not all arrived.
        """
        source, emitter = regions[marker].source, regions[marker].emitter
        text, layout = None, self._read_one(marker, regions[marker])
        while layout is not None:
            text, place = layout, source.place
            # White space between calls is dropped, up to a limit.
            following = markers.pattern.match(source.text, place)
            if len(text) > MAX_SPACE or not following or following[0] not in regions:
                break
            source.skip_to(following.end())
            layout = self._read_one(following[0], regions[following[0]])
            if layout is None:
                source.skip_to(place)
        if text is None:
            return False
        source.drop()
        emitter.text(text)
        return True

    def _read_one(self, marker: str, region: Region) -> str | None:
        """Read the calls behind one marker; return the white space behind them, None for others."""
        if marker == self.implied:
            return None
        opener = marker if region.is_bare else ""
        grammar = next((each for each in self.grammars if marker in each.openers), None)
        grammar = grammar or (self._grammar(opener) if opener else self.grammars[0])
        return grammar.read_usual(opener, region, self._behind_usual)

    def _attempt(self, marker: str, region: Region) -> Parse[None]:
        """Read calls, and emit held text outside of them as text."""
        source, emitter = region.source, region.emitter
        calls = emitter.calls
        source.hold("" if marker == self.implied else marker)
        try:
            yield from self._read(marker, region)
        except Malformed:
            emitter.abandon_call()
        if emitter.calls > calls:
            with contextlib.suppress(Malformed):
                yield from close_calls(source, self.closers, self.markers)
        emitter.text(source.release())

    def _read(self, marker: str, region: Region) -> Parse[None]:
        source = region.source
        if region.is_bare:
            yield from self._grammar(marker).read(marker, region)
            return
        while True:
            source.take(self._marker_run)
            yield from source.skip_space()
            if self.has_header:
                name = yield from source.look_along(NAME, MAX_NAME)
                source.skip(len(name))
            another = yield from source.literal(*self.markers)
            if not another:
                break
            marker = another
        if self.has_header and marker == self.implied:
            raise Malformed
        for grammar in self.grammars:
            if marker in grammar.openers:
                yield from grammar.read(marker, region)
                return
        yield from self._grammar((yield from source.peek())).read("", region)

    def _grammar(self, character: str) -> Grammar:
        for grammar in self.grammars:
            if grammar.fits(character):
                return grammar
        raise Malformed
