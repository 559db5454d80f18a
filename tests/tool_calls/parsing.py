"""Parsing in tests: events merged into the parts of `outputs.notation`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from tests.tool_calls.outputs.notation import TOOLS, Call, Case, Cut, Think

from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ParsedText,
    ReasoningDelta,
    Tool,
)
from trtllm_truss.tool_calls.parser import OutputParser

FORMATS = sorted(
    path.stem
    for path in Path(__file__).with_name("outputs").glob("*.py")
    if path.stem != "notation"
)
Part = str | Call | Cut | Think


def cases(name: str) -> list[Case]:
    """The written outputs of a format."""
    found: list[Case] = import_module(f"tests.tool_calls.outputs.{name}").CASES
    return found


def parse(
    pieces: Iterable[str],
    tools: str | None,
    reasoning: str | None = None,
    offered: Sequence[Tool] | None = TOOLS,
) -> list[Event]:
    parser = OutputParser(
        TOOL_FORMATS[tools] if tools else None,
        REASONING_FORMATS[reasoning] if reasoning else None,
        offered,
    )
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merge([*events, *parser.finish()])


def merge(events: Iterable[Event]) -> list[Event]:
    """Join adjacent deltas of one kind."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            merged[-1] = ArgumentsDelta(last.index, last.json + event.json)
        elif isinstance(event, ParsedText) and isinstance(last, ParsedText):
            merged[-1] = ParsedText(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            merged[-1] = ReasoningDelta(last.text + event.text)
        else:
            merged.append(event)
    return merged


def parts(events: Sequence[Event]) -> list[Part]:
    """Turn merged events into parts, and check their order on the way."""
    found: list[Part] = []
    calls = 0
    rest = iter(events)
    for event in rest:
        if isinstance(event, ParsedText):
            assert event.text
            found.append(event.text)
        elif isinstance(event, ReasoningDelta):
            assert event.text
            found.append(Think(event.text))
        else:
            assert isinstance(event, CallStarted)
            assert event.index == calls
            found.append(_call(event.name, calls, next(rest), next(rest)))
            calls += 1
    return found


def _call(name: str, index: int, arguments: Event, end: Event) -> Call | Cut:
    assert isinstance(arguments, ArgumentsDelta)
    assert isinstance(end, CallEnded)
    assert arguments.index == end.index == index
    if not end.complete:
        return Cut(name, arguments.json)
    value = json.loads(arguments.json)
    assert isinstance(value, dict)
    return Call(name, value)
