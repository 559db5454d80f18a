"""Messages, event streams and errors.

Events: https://platform.claude.com/docs/en/build-with-claude/streaming,
errors: https://platform.claude.com/docs/en/api/errors
"""

from __future__ import annotations

from collections.abc import Iterable
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
from trtllm_truss.protocols.base import WholeWriter, sse_event
from trtllm_truss.protocols.messages.blocks import BlockReader, join_blocks
from trtllm_truss.protocols.messages.body import MessagesCall
from trtllm_truss.requests import AnswerItem, GenerationEnd, Usage

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
"""Anthropic's types of errors; the first match counts."""


class WholeMessage(WholeWriter):
    """Collects one answer into one message.

    Args:
        call: the call.
        answer_id: unique, without the prefix.
    """

    def __init__(self, call: MessagesCall, answer_id: str) -> None:
        super().__init__()
        self._call = call
        self._id = answer_id

    def body(self) -> Json:
        answer, end = self.ended(0)
        reader = BlockReader(self._call)
        content = join_blocks(reader, [*reader.feed(answer.text), *reader.finish()])
        return {
            **_message(self._call, self._id),
            "content": content,
            "stop_reason": reader.stop_reason(end),
            "stop_sequence": end.stop_word,
            "usage": _usage(end.usage, has_reasoned=reader.has_reasoned),
        }


class MessageEvents:
    """Turns one answer into named server-sent events.

    Args:
        call: the call.
        answer_id: unique, without the prefix.
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
            # The tokens of the prompt are known at the end.
            start = {**_message(self._call, self._id), "usage": _usage(Usage(0, 0))}
            events.append({"type": "message_start", "message": start})
        if not isinstance(item, GenerationEnd):
            return _encode([*events, *self._reader.feed(item.text)])
        events += self._reader.finish()
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
    if isinstance(error, ContextLengthExceeded):  # words that Claude Code and litellm look for
        message = f"prompt is too long: {message}"
    kind = next(name for cause, name in _TYPES if isinstance(error, cause))
    return {"type": "error", "error": {"type": kind, "message": message}}


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
    """Return the usage; `input_tokens` are those that were not in the cache.

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
