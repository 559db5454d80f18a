"""Calls, reasoning and text of gpt-oss."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtllm_truss.tool_calls.events import Emitter, Tool
from trtllm_truss.tool_calls.guides import CallGuide, guide_each
from trtllm_truss.tool_calls.json_format import read_arguments
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source
from trtllm_truss.tool_calls.tool_format import ToolFormat, attempt

_HEADERS = ("<|start|>", "<|channel|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_ENDS = Markers("<|message|>", *_ENDS)
_BODY_ENDS = Markers(*_ENDS, *_HEADERS)
_MAX_HEADER = 512
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyFormat(ToolFormat):
    """Messages `<|start|>header<|message|>body<|end|>`, their kind in the header.

    `<|channel|>analysis` is reasoning, `final` and `commentary` are text, a message with
    `to=functions.f` anywhere in the header is a call with a JSON object as its body, ended by
    `<|call|>`. The prompt ends in `<|start|>assistant`, so the output begins inside of a header.
    `<|call|>` and `<|return|>` end an answer and need not show. Source:
    https://github.com/openai/harmony/blob/main/docs/format.md; calls in the analysis channel occur
    (https://github.com/vllm-project/vllm/pull/35907).
    """

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*_HEADERS, *_ENDS, "<|message|>", "<|constrain|>"))

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        begin, end = "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
        return guide_each(tools, lambda name: (begin + name + end, "<|call|>"))

    def parse(self, source: Source, emitter: Emitter, *, to_text: bool = False) -> Parse[None]:
        """Read messages to the end.

        Args:
            source: the text.
            emitter: takes the events.
            to_text: end behind the header of the first message that is text.
        """
        messages = _Messages(source, emitter, to_text)
        markers = Markers(*_HEADERS)
        marker = yield from source.literal(*_HEADERS, " to=", "to=")
        while marker := marker or (yield from source.until(markers, emitter.text)):
            messages.next_marker = ""
            source.hold(marker, _MAX_HEADER)
            yield from attempt(messages.read(marker), source, emitter)
            if messages.is_at_text:
                return
            marker = messages.next_marker


class _Messages:
    """Reads messages one by one.

    Args:
        source: the text.
        emitter: takes the events.
        to_text: leave the body of a message unread if it is text.

    Attributes:
        next_marker: the beginning of the next header, where it ended a body.
        is_at_text: whether such a body is next.
    """

    def __init__(self, source: Source, emitter: Emitter, to_text: bool) -> None:
        self._source = source
        self._emitter = emitter
        self._to_text = to_text
        self.next_marker = ""
        self.is_at_text = False

    def read(self, marker: str) -> Parse[None]:
        """Read the message that begins with the marker.

        Raises:
            Malformed: it has no body, or is a call that cannot be made.
        """
        pieces = [marker]
        if (yield from self._source.until(_HEADER_ENDS, pieces.append)) != "<|message|>":
            raise Malformed
        header = "".join(pieces)
        channel = _group(_CHANNEL, header)
        recipient = _group(_RECIPIENT, header)
        name = recipient.removeprefix("functions.")
        if self._emitter.offers(name):
            yield from self._read_call(name)
        elif recipient and (channel != "analysis" or name != recipient):
            raise Malformed
        else:
            yield from self._read_body(channel)

    def _read_call(self, name: str) -> Parse[None]:
        yield from read_arguments(name, self._source, self._emitter)
        yield from self._source.close(*_ENDS)

    def _read_body(self, channel: str) -> Parse[None]:
        self._source.release()
        if channel == "analysis":
            self._emitter.start_reasoning()
            end = yield from self._source.until(_BODY_ENDS, self._emitter.reasoning)
            self._emitter.end_reasoning()
        elif self._to_text:
            self.is_at_text = True
            return
        else:
            self._emitter.start_text()
            end = yield from self._source.until(_BODY_ENDS, self._emitter.text)
        self.next_marker = end if end in _HEADERS else ""


def _group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""
