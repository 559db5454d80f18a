"""The text of one answer to content blocks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from trtllm_truss.protocols.messages.body import MessagesCall
from trtllm_truss.requests import FinishReason, GenerationEnd
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    TextDelta,
    call_as_text,
)
from trtllm_truss.validation import is_unicode

SIGNATURE = "unsigned"
"""The signature of thoughts; nothing is signed, and some clients drop thoughts without one."""

TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"
Json = dict[str, Any]


class BlockReader:
    """Text of one answer to the events of its content blocks.

    Args:
        call: the call.

    Attributes:
        calls: the indexes of the blocks that are whole calls.
        has_reasoned: whether there was thinking.
    """

    def __init__(self, call: MessagesCall) -> None:
        self._call = call
        self._parser = call.new_parser() if call.new_parser else None
        self._index = -1
        self._open: str | None = None
        self.calls: set[int] = set()
        self.has_reasoned = False

    def feed(self, text: str) -> list[Json]:
        """Return the events of more text."""
        events = self._parser.feed(text) if self._parser else [TextDelta(text)]
        return self._read(events)

    def finish(self) -> list[Json]:
        """Return the last events."""
        found = self._read(self._parser.finish()) if self._parser else []
        self._close(found)
        return found

    def stop_reason(self, end: GenerationEnd) -> str:
        """Return the message's stop reason, once it is finished."""
        if end.reason is FinishReason.LENGTH:
            is_callers_limit = end.usage.completion_tokens >= self._call.request.max_tokens
            return "max_tokens" if is_callers_limit else "model_context_window_exceeded"
        if end.stop_word is not None:
            return "stop_sequence"
        return TOOL_USE if self.calls else "end_turn"

    def _read(self, events: Iterable[Event]) -> list[Json]:
        found: list[Json] = []
        for event in events:
            if isinstance(event, TextDelta):
                if event.text:
                    self._switch_to(TEXT, found)
                    self._add_delta({"type": "text_delta", "text": event.text}, found)
            elif isinstance(event, ReasoningDelta):
                self.has_reasoned = True
                self._switch_to(THINKING, found)
                if self._call.shows_thinking:
                    self._add_delta({"type": "thinking_delta", "thinking": event.text}, found)
            else:
                self._read_call(event, found)
        return found

    def _read_call(
        self, event: CallStarted | ArgumentsDelta | CallEnded, found: list[Json]
    ) -> None:
        if isinstance(event, CallStarted):
            self._close(found)
            block = {"id": f"toolu_{uuid.uuid4().hex[:24]}", "name": event.name, "input": {}}
            self._start({"type": TOOL_USE, **block}, found)
        elif isinstance(event, ArgumentsDelta):
            self._add_delta({"type": "input_json_delta", "partial_json": event.json}, found)
        else:
            if event.complete:
                self.calls.add(self._index)
            self._close(found)

    def _switch_to(self, kind: str, found: list[Json]) -> None:
        if self._open == kind:
            return
        self._close(found)
        empty = {"text": ""} if kind == TEXT else {"thinking": "", "signature": ""}
        self._start({"type": kind, **empty}, found)

    def _start(self, block: Json, found: list[Json]) -> None:
        self._index += 1
        self._open = block["type"]
        found.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _add_delta(self, delta: Json, found: list[Json]) -> None:
        found.append({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self, found: list[Json]) -> None:
        if self._open is None:
            return
        if self._open == THINKING:
            self._add_delta({"type": "signature_delta", "signature": SIGNATURE}, found)
        self._open = None
        found.append({"type": "content_block_stop", "index": self._index})


def join_blocks(reader: BlockReader, events: Iterable[Json]) -> list[Json]:
    """Join all events of an answer to its content. A call that is not whole becomes text.

    Args:
        reader: the reader of the events, finished; its `calls` keep those of the content.
        events: all of its events.
    """
    blocks: list[Json] = []
    parts: list[list[str]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            parts.append([])
        elif event["type"] == "content_block_delta":
            (_, kind), (_, part) = event["delta"].items()
            if kind == "signature_delta":
                blocks[-1]["signature"] = part
            else:
                parts[-1].append(part)
    content: list[Json] = []
    for index, (block, pieces) in enumerate(zip(blocks, parts, strict=True)):
        text = "".join(pieces)
        if block["type"] == TOOL_USE:
            arguments = _arguments(text) if index in reader.calls else None
            if arguments is not None:
                content.append({**block, "input": arguments})
                continue
            reader.calls.discard(index)
            text = call_as_text(block["name"], text)
            block = {"type": TEXT, "text": ""}
        if block["type"] == TEXT and content and content[-1]["type"] == TEXT:
            content[-1][TEXT] += text
        else:
            content.append({**block, block["type"]: text})
    return content


def _arguments(text: str) -> Json | None:
    """Return the arguments of a call as JSON can hold them, or None."""
    try:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value if is_unicode(written) else json.loads(written.encode(errors="replace"))
