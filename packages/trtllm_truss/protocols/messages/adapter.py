"""Responses of Anthropic's Messages API: content blocks, messages, events and errors.

Events: https://platform.claude.com/docs/en/build-with-claude/streaming,
errors: https://platform.claude.com/docs/en/api/errors
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineUnavailable,
    Overloaded,
    QueueFull,
    RequestError,
    TrussError,
)
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    Call,
    Defaults,
    WholeWriter,
    sse_event,
)
from trtllm_truss.protocols.messages.body import MessagesCall, parse_messages
from trtllm_truss.protocols.tool_use import ModelFormats
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, Usage
from trtllm_truss.tool_calls.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    ParsedText,
    ReasoningDelta,
    call_as_text,
)
from trtllm_truss.validation import is_unicode

SIGNATURE = "unsigned"
"""The signature of thinking blocks; nothing is signed, but some clients drop blocks without one."""

TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"


class BlockReader:
    """Turns the text of one choice into events of its content blocks.

    Attributes:
        calls: indexes of the blocks that are complete calls.
        has_reasoned: there was thinking.
    """

    def __init__(self, call: MessagesCall) -> None:
        self._call = call
        self._parser = call.new_parser() if call.new_parser else None
        self._index = -1
        self._open: str | None = None
        self.calls: set[int] = set()
        self.has_reasoned = False

    def feed(self, text: str) -> list[Json]:
        """Return the events for more text."""
        events = self._parser.feed(text) if self._parser else [ParsedText(text)]
        return self._read(events)

    def finish(self, reason: FinishReason) -> list[Json]:
        """Return the last events."""
        is_cut = reason is FinishReason.LENGTH
        found = self._read(self._parser.finish(is_cut=is_cut)) if self._parser else []
        self._close(found)
        return found

    def stop_reason(self, end: GenerationEnd) -> str:
        """Return the message's stop reason, once it has finished."""
        if end.reason is FinishReason.LENGTH:
            is_callers_limit = end.usage.completion_tokens >= self._call.request.max_tokens
            return "max_tokens" if is_callers_limit else "model_context_window_exceeded"
        if end.stop_word is not None:
            return "stop_sequence"
        return TOOL_USE if self.calls else "end_turn"

    def _read(self, events: Iterable[Event]) -> list[Json]:
        found: list[Json] = []
        for event in events:
            if isinstance(event, ParsedText):
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
    """Join all events of a choice into its content. An incomplete call becomes text.

    Args:
        reader: the finished reader of the events; its `calls` select the calls of the content.
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
    """Return a call's arguments if JSON can represent them, otherwise None."""
    try:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value if is_unicode(written) else json.loads(written.encode(errors="replace"))


Json = dict[str, Any]

_TYPES: tuple[tuple[type[TrussError], str], ...] = (
    (BodyTooLarge, "request_too_large"),
    (RequestError, "invalid_request_error"),
    (QueueFull, "rate_limit_error"),
    (EngineUnavailable, "overloaded_error"),
    (Overloaded, "overloaded_error"),
    (DeadlineExceeded, "timeout_error"),
    (TrussError, "api_error"),
)
"""Anthropic's error types; the first match applies."""

_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["threads"]}
"""Makes Anthropic's clients go on without threads: lib/threads/_thread_state.py, anthropic 2.12."""


class CollectedMessage(WholeWriter):
    """Collects one choice into one message.

    Args:
        answer_id: unique id, without the prefix.
    """

    def __init__(self, call: MessagesCall, answer_id: str) -> None:
        super().__init__()
        self._call = call
        self._id = answer_id

    def body(self) -> Json:
        answer, end = self.ended(0)
        reader = BlockReader(self._call)
        content = join_blocks(reader, [*reader.feed(answer.text), *reader.finish(end.reason)])
        return {
            **_message(self._call, self._id),
            "content": content,
            "stop_reason": reader.stop_reason(end),
            "stop_sequence": end.stop_word,
            "usage": _usage(end.usage, has_reasoned=reader.has_reasoned),
        }


class MessageEvents:
    """Turns one choice into named server-sent events.

    Args:
        answer_id: unique id, without the prefix.
    """

    def __init__(self, call: MessagesCall, answer_id: str) -> None:
        self._call = call
        self._id = answer_id
        self._reader = BlockReader(call)
        self._has_begun = False

    def push(self, item: AnswerItem) -> bytes:
        events: list[Json] = []
        if not self._has_begun:
            self._has_begun = True
            assert item.usage is not None, "streams have the usage so far"
            of_prompt = Usage(item.usage.prompt_tokens, 0, cached_tokens=item.usage.cached_tokens)
            start = {**_message(self._call, self._id), "usage": _usage(of_prompt)}
            events.append({"type": "message_start", "message": start})
        if not isinstance(item, GenerationEnd):
            return _encode([*events, *self._reader.feed(item.text)])
        events += self._reader.finish(item.reason)
        delta = {
            "stop_reason": self._reader.stop_reason(item),
            "stop_sequence": item.stop_word,
        }
        usage = _usage(item.usage, has_reasoned=self._reader.has_reasoned)
        events.append({"type": "message_delta", "delta": delta, "usage": usage})
        return _encode(events)

    def end(self) -> bytes:
        return _encode([{"type": "message_stop"}])

    def error(self, error: TrussError) -> bytes:
        """Return the last event of a failed stream; no `message_stop` follows."""
        return _encode([{**error_body(error), "request_id": self._id}])


def error_body(error: TrussError) -> Json:
    """Build the body of an error response."""
    message = error.message
    if isinstance(error, ContextLengthExceeded):  # phrase that Claude Code and litellm look for
        message = f"prompt is too long: {message}"
    kind = next(name for cause, name in _TYPES if isinstance(error, cause))
    details = {"details": _NO_THREADS} if error.param == "thread" else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def _message(call: MessagesCall, answer_id: str) -> Json:
    """Return a message without content."""
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(usage: Usage, *, has_reasoned: bool = False) -> Json:
    """Return the usage; `input_tokens` counts the tokens that were not cached.

    Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching.
    """
    fields: Json = {
        "input_tokens": usage.prompt_tokens - (usage.cached_tokens or 0),
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        fields["cache_read_input_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens is not None:
        thinking_tokens = usage.reasoning_tokens if has_reasoned else 0
        fields["output_tokens_details"] = {"thinking_tokens": thinking_tokens}
    return fields


def _encode(events: Iterable[Json]) -> bytes:
    return b"".join(sse_event(event, event["type"]) for event in events)


@dataclass(frozen=True, slots=True)
class MessagesAdapter:
    """The Messages API.

    Attributes:
        formats: the model's formats of tool calls and reasoning.
    """

    defaults: Defaults
    formats: ModelFormats

    @property
    def name(self) -> str:
        return "messages"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        call = parse_messages(body, self.defaults, self.formats)
        if call.stream:
            return Call([call.request], MessageEvents(call, call_id), SSE_MEDIA_TYPE)
        return Call([call.request], CollectedMessage(call, call_id), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)
