"""The parser of one choice, and the selection of its formats."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from trtllm_truss.conversation.templates import ModelTemplates
from trtllm_truss.text.chat_template import ChatTemplate
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.detection import DEFAULT, find_reasoning_format, find_tool_format
from trtllm_truss.tool_calls.emitter import ControlWords, Emitter
from trtllm_truss.tool_calls.events import CallEnded, Event, ParsedText, ReasoningDelta, Tool
from trtllm_truss.tool_calls.reasoning import ReasoningFormat
from trtllm_truss.tool_calls.source import Parse, Source, markers_of
from trtllm_truss.tool_calls.tool_format import ToolFormat

_PIECE = 1 << 14
"""Characters read at once: lookahead, or text put back, may copy or scan them all."""


class OutputParser:
    """Splits the text of one choice into text, reasoning and tool calls.

    With adjacent deltas merged, the events do not depend on how the text is split. Only text that
    may still be a marker or the start of a call is held back, and reasoning from the marker of a
    call on.

    Args:
        tools: format of calls; None reads none.
        reasoning: format of reasoning; None reads none, except with harmony, which always has
            reasoning.
        offered: functions that may be called. None allows any name.
        parallel: several calls are allowed; otherwise those after the first are dropped.
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
        self._tools = tools
        self._offered = offered if tools else ()
        self._source = Source()
        words = _control_words(tools, reasoning)
        self._emitter = Emitter(self._source, self._offered, words)
        self._parse = self._read(tools, reasoning)

    def feed(self, text: str) -> list[Event]:
        """Read more text.

        Returns:
            The new events; often one.
        """
        for at in range(0, len(text), _PIECE):
            self._source.feed(text[at : at + _PIECE])
            next(self._parse, None)
        return self._drain()

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Finish the text.

        Args:
            is_cut: a limit has ended it, so missing parts need not be empty.

        Returns:
            The last events. An announced call that is incomplete ends with `complete=False`.
        """
        self._source.end(is_cut=is_cut)
        next(self._parse, None)
        self._emitter.finish()
        return self._drain()

    def _drain(self) -> list[Event]:
        events = self._emitter.drain()
        return events if self._parallel else [event for event in events if _is_kept(event)]

    def _read(self, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> Parse[None]:
        source, emitter = self._source, self._emitter
        if reasoning:
            yield from reasoning.parse(source, emitter, tools, self._find_calls)
        if tools:
            yield from tools.parse(source, emitter, reasoning)
        elif reasoning and reasoning.restarts:
            while (yield from source.until(markers_of(*reasoning.restarts), emitter.text)):
                yield from reasoning.read_block(source, emitter)
        yield from source.until(markers_of(), emitter.text)

    def _find_calls(self, text: str) -> int:
        """Return where the calls at the end of a text start."""
        assert self._tools
        parser = OutputParser(self._tools, None, self._offered)
        openers = "|".join(map(re.escape, self._tools.call_openers))
        begins = [match.start() for match in re.finditer(openers, text)]
        first, are_whole = len(text), False
        for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
            events = parser.feed(text[begin:end])
            if end == len(text):
                events += parser.finish()
            ended = [event.complete for event in events if isinstance(event, CallEnded)]
            if any(isinstance(event, ParsedText) and event.text.strip() for event in events):
                first, are_whole = len(text), False
            else:
                first = min(first, begin)
                are_whole = ended[-1] if ended else are_whole
        return first if are_whole else len(text)


def _control_words(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None
) -> ControlWords | None:
    if reasoning is None:
        return ControlWords(tools.dropped) if tools and tools.dropped else None
    return ControlWords(
        (tools.dropped if tools else frozenset()) | reasoning.dropped,
        reasoning.starts,
        reasoning.ends,
        reasoning.wrappers,
    )


def _is_kept(event: Event) -> bool:
    return isinstance(event, ParsedText | ReasoningDelta) or event.index == 0


def choose_formats(
    tools: str | None,
    reasoning: str | None,
    template: ModelTemplates | str | None,
    tokens: Collection[str] = (),
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    """Return the formats by their names in the settings; ``auto`` selects the chat template's.

    Args:
        template: the model's templates, or the source of one; None or empty without one.
        tokens: special tokens of the model's vocabulary.
    """
    if isinstance(template, str):
        template = _compiled(template) if template else None
    tool_format = TOOL_FORMATS.get(tools or "")
    if tools == "auto":
        tool_format = find_tool_format(template, tokens) if template else TOOL_FORMATS[DEFAULT]
    reasoning_format = REASONING_FORMATS.get(reasoning or "")
    if reasoning == "auto" and template is not None:
        reasoning_format = find_reasoning_format(template)
    return tool_format, reasoning_format


def _compiled(source: str) -> ModelTemplates:
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": ""}
    return ModelTemplates({"default": ChatTemplate(source)}, tokens)
