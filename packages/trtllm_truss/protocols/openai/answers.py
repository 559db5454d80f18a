"""Choices of either API, whole objects, event streams and errors.

The contents and order of streams follow
https://platform.openai.com/docs/api-reference/chat-streaming.
Errors: https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trtllm_truss.errors import QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import CollectedAnswer, WholeWriter, json_bytes, sse_event
from trtllm_truss.requests import (
    AnswerItem,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    TextDelta,
    Token,
    Usage,
)
from trtllm_truss.tool_calls.parser import OutputParser

Json = dict[str, Any]


class Shape(Protocol):
    """The choices of one API."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def opening(self, index: int) -> Json | None:
        """Return the choice that precedes all text, if any."""

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        """Return a choice with more text, after `offset` characters."""

    def ending(self, index: int, reason: FinishReason) -> Json:
        """Return the last choice."""

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: FinishReason) -> Json:
        """Return a complete choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICall:
    """A parsed body.

    Attributes:
        requests: one for each prompt.
        model: the caller's name of the model; echoed.
        include_usage: whether a stream ends with the usage.
        new_parser: makes a parser of reasoning and tool calls for each answer; None for text.
        names_function: whether `tool_choice` names the function to call.
        include_reasoning: whether the answers hold the reasoning.
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    include_usage: bool
    shape: Shape
    new_parser: Callable[[], OutputParser] | None = None
    names_function: bool = False
    include_reasoning: bool = True

    @property
    def n(self) -> int:
        return self.requests[0].n


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Messages and their deltas.

    Attributes:
        alternatives: number of alternatives per token; None for no log probabilities. Where it is 1
            and the engine reported none, the chosen token is the likeliest.
    """

    id_prefix: ClassVar[str] = "chatcmpl-"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    alternatives: int | None = None

    def opening(self, index: int) -> Json | None:
        return chunk_choice(index, {"role": "assistant", "content": ""})

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        log_probs = self.log_probs_of(piece.tokens)
        return chunk_choice(index, {"content": piece.text}, log_probs=log_probs)

    def ending(self, index: int, reason: FinishReason) -> Json:
        return chunk_choice(index, {}, reason=reason.value)

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: FinishReason) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self.log_probs_of(tokens),
            "finish_reason": reason.value,
        }

    def log_probs_of(self, tokens: Sequence[Token]) -> Json | None:
        """Return the field `logprobs`; None if not requested."""
        if self.alternatives is None:
            return None
        content = [
            {
                **_with_bytes(token.text, token.log_prob),
                "top_logprobs": [
                    _with_bytes(other.text, other.log_prob)
                    for other in token.alternatives or (token,) * (self.alternatives == 1)
                ],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Texts, whole or in parts.

    Attributes:
        log_probs: the number of alternatives; None for no log probabilities.
    """

    id_prefix: ClassVar[str] = "cmpl-"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    log_probs: int | None = None

    def opening(self, index: int) -> Json | None:
        return None

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        return self._choice(index, piece.text, piece.tokens, None, offset)

    def ending(self, index: int, reason: FinishReason) -> Json:
        return self._choice(index, "", (), reason, 0)

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: FinishReason) -> Json:
        return self._choice(index, text, tokens, reason, 0)

    def _choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[Token],
        reason: FinishReason | None,
        offset: int,
    ) -> Json:
        return {
            "index": index,
            "text": text,
            "logprobs": self._log_probs(tokens, offset),
            "finish_reason": None if reason is None else reason.value,
        }

    def _log_probs(self, tokens: Sequence[Token], offset: int) -> Json | None:
        if self.log_probs is None or not tokens:
            return None
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text)
        return {
            "text_offset": offsets,
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.log_prob for token in tokens],
            "top_logprobs": [_likeliest(token) for token in tokens] if self.log_probs else None,
        }


def chunk_choice(
    index: int,
    delta: Json,
    *,
    log_probs: Json | None = None,
    reason: str | None = None,
) -> Json:
    """Build a choice of a chunk of a chat."""
    return {
        "index": index,
        "delta": delta,
        "logprobs": log_probs,
        "finish_reason": reason,
    }


def _with_bytes(text: str, log_prob: float | None) -> Json:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def _likeliest(token: Token) -> dict[str, float] | None:
    """Return log probabilities of the alternatives and of the chosen token, by their texts.

    Of tokens with the same text the likeliest counts. The first token of a prompt has none.
    """
    if token.log_prob is None:
        return None
    found: dict[str, float] = {}
    for other in token.alternatives:
        found.setdefault(other.text, other.log_prob)
    if all(other.id != token.id for other in token.alternatives):
        found.setdefault(token.text, token.log_prob)
    return found


DONE = b"data: [DONE]\n\n"


class UsageCount:
    """Tokens of a whole call. A prompt counts once, regardless of its choices."""

    def __init__(self, call: OpenAICall) -> None:
        self._choices_each = call.n
        self._usages: dict[int, Usage] = {}
        self._reasoned: set[int] = set()

    def begin(self, item: AnswerItem) -> None:
        """Count the prompt of an answer, before its first text."""
        if item.usage is not None:
            of_prompt = Usage(item.usage.prompt_tokens, 0, cached_tokens=item.usage.cached_tokens)
            self._usages[item.index] = of_prompt

    def add(self, item: AnswerItem, *, has_reasoned: bool = False) -> None:
        """Count an answer, or replace its earlier count."""
        if item.usage is not None:
            self._usages[item.index] = item.usage
            if has_reasoned:
                self._reasoned.add(item.index)

    def fields(self) -> dict[str, Any]:
        usages = self._usages.items()
        prompts = {index // self._choices_each: usage.prompt_tokens for index, usage in usages}
        prompt_tokens = sum(prompts.values())
        completion_tokens = sum(usage.completion_tokens for _, usage in usages)
        fields: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        cached = self._cached_tokens()
        if cached is not None:
            fields["prompt_tokens_details"] = {"cached_tokens": cached}
        counted = {i: u.reasoning_tokens for i, u in usages if u.reasoning_tokens is not None}
        if counted:
            reasoning_tokens = sum(counted[index] for index in self._reasoned & counted.keys())
            fields["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        return fields

    def _cached_tokens(self) -> int | None:
        """Return the cached tokens of all prompts, each of its choice that found fewest."""
        prompts: dict[int, int] = {}
        for index, usage in self._usages.items():
            if (count := usage.cached_tokens) is not None:
                prompt = index // self._choices_each
                prompts[prompt] = min(count, prompts.get(prompt, count))
        return sum(prompts.values()) if prompts else None


class WholeAnswer(WholeWriter):
    """Collects the answers of one call into one object.

    Args:
        answer_id: unique, without the API's prefix.
        created_s: seconds since 1970.
    """

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        super().__init__()
        self.call = call
        self._head = _head(call, call.shape.whole_object, answer_id, created_s)

    def body(self) -> dict[str, Any]:
        usage = UsageCount(self.call)
        choices = [
            self.choice(*self.ended(index), usage)
            for index in range(len(self.call.requests) * self.call.n)
        ]
        return {**self._head, "choices": choices, "usage": usage.fields()}

    def choice(
        self, answer: CollectedAnswer, end: GenerationEnd, usage: UsageCount
    ) -> dict[str, Any]:
        """Build the choice of one answer, and count its tokens."""
        usage.add(end)
        return self.call.shape.whole(end.index, answer.text, answer.tokens, end.reason)


class EventStream:
    """Turns the answers of one call into server-sent events.

    Args:
        answer_id: unique, without the API's prefix.
        created_s: seconds since 1970.
    """

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        self.call = call
        head = _head(call, call.shape.chunk_object, answer_id, created_s)
        self._head = b"data: " + json_bytes(head)[:-1] + b',"choices":'
        self.usage = UsageCount(call)
        self._running_usage = call.requests[0].running_usage
        self._lengths: dict[int, int] = {}

    def push(self, item: AnswerItem) -> bytes:
        shape, index = self.call.shape, item.index
        events = b""
        if index not in self._lengths:
            self._lengths[index] = 0
            self.usage.begin(item)
            opening = shape.opening(index)
            events = b"" if opening is None else self.event([opening])
        if item.usage is not None:
            self.usage.add(item)
        if isinstance(item, GenerationEnd):
            return events + self.event([shape.ending(index, item.reason)])
        offset = self._lengths[index]
        self._lengths[index] = offset + len(item.text)
        return events + self.event([shape.part(index, item, offset)])

    def end(self) -> bytes:
        """Return the usage, if requested, and `[DONE]`."""
        if not self.call.include_usage:
            return DONE
        usage = json_bytes(self.usage.fields())
        return self._head + b'[],"usage":' + usage + b"}\n\n" + DONE

    def error(self, error: TrussError) -> bytes:
        """Return the last event of a failed stream; no `[DONE]` follows."""
        return sse_event(error_body(error))

    def event(self, choices: list[dict[str, Any]]) -> bytes:
        """Encode one event."""
        usage = b""
        if self._running_usage:
            usage = b',"usage":' + json_bytes(self.usage.fields())
        elif self.call.include_usage:
            usage = b',"usage":null'
        return self._head + json_bytes(choices) + usage + b"}\n\n"


def _head(call: OpenAICall, kind: str, answer_id: str, created_s: int) -> dict[str, Any]:
    return {
        "id": call.shape.id_prefix + answer_id,
        "object": kind,
        "created": created_s,
        "model": call.model,
    }


def error_body(error: TrussError) -> dict[str, Any]:
    """Build the body of an error response. `code` is a code of this project."""
    return {
        "error": {
            "message": error.message,
            "type": _kind(error),
            "param": error.param,
            "code": error.code,
        }
    }


def _kind(error: TrussError) -> str:
    if isinstance(error, RequestError):
        return "invalid_request_error"
    return "rate_limit_error" if isinstance(error, QueueFull) else "server_error"
