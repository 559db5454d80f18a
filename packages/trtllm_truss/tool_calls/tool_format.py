"""The interface of tool call formats."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_truss.tool_calls.events import Emitter, Tool
from trtllm_truss.tool_calls.guides import CallGuide
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source

MAX_NAME = 256
NAME = re.compile(r"[\w.-]*")


class ToolFormat(ABC):
    """A way of writing tool calls."""

    @property
    @abstractmethod
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""

    @abstractmethod
    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call.

        Args:
            tools: the functions to choose from; for a named function only that one.
            parallel: whether several calls are allowed. Only formats with arrays make use of it.

        Returns:
            Alternatives. Empty if the format has no JSON; use the format `json` to force a call.
        """

    @abstractmethod
    def parse(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read text and calls to the end."""


@dataclass(frozen=True)
class MarkerFormat(ToolFormat):
    """A format whose calls begin with a marker in the text.

    Attributes:
        markers: words that may begin calls wherever they stand.
        line_markers: characters that may begin calls at the beginning of a line.
        closers: words that may follow calls.
    """

    markers: tuple[str, ...] = ()
    line_markers: str = ""
    closers: tuple[str, ...] = ()

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*self.markers, *self.closers))

    def parse(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read text and calls to the end."""
        markers = Markers(*self.markers, *self.line_markers)
        while marker := (yield from source.until(markers, emitter.text)):
            if marker in self.line_markers and not emitter.line_is_blank:
                emitter.text(marker)
            else:
                source.hold(marker)
                yield from attempt(self.read(marker, source, emitter), source, emitter)

    @abstractmethod
    def read(self, marker: str, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the calls that follow a marker.

        Raises:
            Malformed: they are no calls, or cut off.
        """


def attempt(calls: Parse[None], source: Source, emitter: Emitter) -> Parse[None]:
    """Read calls, and emit held text outside of them as text."""
    try:
        yield from calls
    except Malformed:
        emitter.abandon_call()
    emitter.text(source.release())


def read_name(source: Source, emitter: Emitter) -> Parse[str]:
    """Read the name of a function.

    Raises:
        Malformed: it is not offered.
    """
    name = yield from source.look_along(NAME, MAX_NAME)
    if not emitter.offers(name):
        raise Malformed
    return source.skip(len(name))
