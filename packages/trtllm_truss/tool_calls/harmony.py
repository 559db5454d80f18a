"""gpt-oss: messages in channels."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.grammars import Region, close_calls
from trtllm_truss.tool_calls.reasoning import FindCalls, ReasoningFormat
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source
from trtllm_truss.tool_calls.tool_format import CallGuide, FurtherReasoning, ToolFormat, guide_each

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADERS = (_START, _CHANNEL, _MESSAGE)
_OPENERS = (*_HEADERS, f"assistant{_CHANNEL}", f"assistant{_MESSAGE}")
_TOKENS = frozenset((*_HEADERS, *_ENDS, _CONSTRAIN))
_STARTS = Markers(*_OPENERS)
_HEADER_ENDS = Markers(_MESSAGE, _START, *_ENDS)
_BODY_ENDS = Markers(*_ENDS, *_HEADERS)
_MAX_HEADER = 512

_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([\w.-]*)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_MARKUP = re.compile(
    r"(<\|start\|>|^)\s*assistant\b|<\|start\|>\s*[\w.:-]*|<\|channel\|>\s*(analysis|commentary|final)\b"
    r"|<\|constrain\|>\s*\w*|\bto=[^\s<]+|<\|\w+\|>"
)
"""The parts of a header; the rest is a body without its `<|message|>`."""

_ANALYSIS = "analysis"
_PEOPLE = {"user", "assistant", "system", "developer", "all", "none"}
"""Recipients of messages that are not calls."""


class HarmonyFormat(ToolFormat):
    """Messages `<|start|>header<|message|>body<|end|>`, with their kind in the header.

    `<|channel|>analysis` is reasoning, `final` and `commentary` are text, a message with
    `to=functions.f` anywhere in the header, or with a function as its channel, is a call with a
    JSON object as its body, ended by `<|call|>`. The prompt ends with `<|start|>assistant`, so the
    output starts inside a header. `<|call|>` and `<|return|>` finish a choice and may be missing.
    Source: https://github.com/openai/harmony/blob/main/docs/format.md; calls in the analysis
    channel occur (https://github.com/vllm-project/vllm/pull/35907), and garbled headers do
    (https://github.com/openai/harmony/issues/38). In a header without `<|message|>`, the words
    after a known channel are the body; otherwise all words are reasoning.
    """

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return _TOKENS

    @property
    def dropped(self) -> frozenset[str]:
        """Control words, which are never part of a choice's text."""
        return _TOKENS

    @property
    def signs(self) -> frozenset[str]:
        """Words of a prompt that describes the format."""
        return frozenset((_CHANNEL,))

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        header = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>"
        return guide_each(tools, header, "<|call|>")

    def parse(
        self,
        source: Source,
        emitter: Emitter,
        reasoning: FurtherReasoning | None = None,
        *,
        to_text: bool = False,
    ) -> Parse[None]:
        """Read messages to the end.

        Args:
            to_text: stop after the header of the first message that is text.
        """
        messages = _Messages(source, emitter, to_text)
        marker = yield from source.literal(*_OPENERS, " to=", "to=")
        while marker := marker or (yield from source.until(_STARTS, emitter.text)):
            messages.next_marker = ""
            yield from messages.read(marker)
            emitter.text(source.release())
            if messages.is_at_text:
                return
            marker = messages.next_marker


class _Messages:
    """Reads messages one by one.

    Args:
        to_text: leave the body of a message unread if it is text.

    Attributes:
        next_marker: start of the next header, if it ended a message.
        is_at_text: such a body is next.
    """

    def __init__(self, source: Source, emitter: Emitter, to_text: bool) -> None:
        self._source = source
        self._emitter = emitter
        self._to_text = to_text
        self.next_marker = ""
        self.is_at_text = False

    def read(self, marker: str) -> Parse[None]:
        """Read the message that starts with the marker."""
        source = self._source
        end = _MESSAGE if marker.endswith(_MESSAGE) else ""
        source.hold(marker, _MAX_HEADER)
        is_long = False
        try:
            end = end or (yield from source.until(_HEADER_ENDS, _ignore, reads=False))
        except Malformed:
            is_long = True
        header = source.release()
        if end == _MESSAGE and not marker.endswith(_MESSAGE):
            source.skip(len(_MESSAGE))
        channel = _group(_CHANNEL_NAME, header)
        recipient = _group(_RECIPIENT, header)
        name = self._emitter.find(recipient or channel)
        if channel in _CHANNELS and not recipient:
            name = ""
        if end != _MESSAGE:
            body = _MARKUP.sub("", header)
            if name and not is_long:
                body = body[body.find("{") :] if "{" in body else ""
            elif not (body[:1].isspace() and channel in _CHANNELS):
                channel = _ANALYSIS
            is_cut = not end and not is_long and len(body.split()) < 2
            if is_cut or not (body.strip() or name):
                self.next_marker = source.skip(len(end)) if end == _START else ""
                return
            source.unread(body)
        if name and not is_long:
            yield from self._read_call(name)
        else:
            yield from self._read_body(channel, recipient)

    def _read_call(self, name: str) -> Parse[None]:
        source = self._source
        region = Region(source, self._emitter, (*_ENDS, *_HEADERS), is_bare=False)
        calls = self._emitter.calls
        source.hold()
        try:
            yield from region.read_arguments(name)
        except Malformed:
            self._emitter.abandon_call()
        if self._emitter.calls == calls:
            self._emitter.text(f"functions.{name} ")
            return
        with contextlib.suppress(Malformed):
            yield from close_calls(source, _ENDS, _HEADERS)

    def _read_body(self, channel: str, recipient: str) -> Parse[None]:
        if channel == _ANALYSIS:
            self._emitter.start_reasoning()
            end = yield from self._source.until(_BODY_ENDS, self._emitter.reasoning)
            self._emitter.end_reasoning()
        elif self._to_text:
            self.is_at_text = True
            return
        else:
            self._emitter.start_text()
            if recipient and recipient not in _PEOPLE:
                self._emitter.text(f"{recipient} ")
            end = yield from self._source.until(_BODY_ENDS, self._emitter.text)
        self.next_marker = end if end in _HEADERS else ""


def _ignore(text: str) -> None:
    """Leave text to the source, which holds it."""


def _group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


_CHANNELS = (_ANALYSIS, "commentary", "final")
_HARMONY = HarmonyFormat()


@dataclass(frozen=True)
class HarmonyReasoning(ReasoningFormat):
    """The analysis channel of gpt-oss. Reads the whole choice, including calls.

    Attributes:
        reads_calls: calls are gpt-oss's own; otherwise reading stops where the text of the `final`
            channel starts.
    """

    reads_calls: bool = True

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return _TOKENS

    def before(self, tools: ToolFormat) -> ReasoningFormat:
        return self if isinstance(tools, HarmonyFormat) else replace(self, reads_calls=False)

    def parse(
        self,
        source: Source,
        emitter: Emitter,
        tools: ToolFormat | None = None,
        find_calls: FindCalls = len,
    ) -> Parse[None]:
        """Read the choice to the end, or to its text."""
        yield from _HARMONY.parse(source, emitter, to_text=not self.reads_calls)
