"""Choices of both APIs, whole objects, event streams and errors.

The contents and order of streams follow
https://platform.openai.com/docs/api-reference/chat-streaming.
Errors: https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trtllm_truss.errors import QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import (
    CollectedAnswer,
    EncodedList,
    WholeWriter,
    json_bytes,
    sse_event,
)
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
    """Builds the choices of one API."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def opening(self, index: int) -> Json | None:
        """Return the choice that precedes all text, if any."""

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        """Return a choice with more text, after `offset` characters."""

    def ending(self, index: int, reason: FinishReason) -> Json:
        """Return the last part of a choice."""

    def whole(self, index: int, text: str, reason: FinishReason) -> Json:
        """Return a complete choice without its log probabilities."""

    def collector(self) -> LogProbs | None:
        """Return the collector of a choice's log probabilities; None if none are requested."""


class LogProbs(Protocol):
    """The log probabilities of one choice, encoded as they arrive: 20 alternatives take 100 µs."""

    def add(self, tokens: Sequence[Token]) -> None:
        """Encode the log probabilities of the next tokens."""

    def json(self) -> bytes:
        """Return the field `logprobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICall:
    """A parsed body.

    Attributes:
        requests: one per prompt.
        model: the caller's name of the model; echoed.
        include_usage: a stream ends with the usage.
        new_parser: creates a parser of reasoning and tool calls for each choice; None for text.
        forces_call: `tool_choice` requires a call.
        names_function: `tool_choice` specifies the function.
        include_reasoning: the response includes the reasoning.
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    include_usage: bool
    shape: Shape
    new_parser: Callable[[], OutputParser] | None = None
    forces_call: bool = False
    names_function: bool = False
    include_reasoning: bool = True

    @property
    def n(self) -> int:
        return self.requests[0].n


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Builds messages and their deltas.

    Attributes:
        alternatives: number of alternatives per token; None without log probabilities. If it is 1
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

    def whole(self, index: int, text: str, reason: FinishReason) -> Json:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "finish_reason": reason.value,
        }

    def collector(self) -> LogProbs | None:
        return None if self.alternatives is None else _ChatLogProbs(self)

    def log_probs_of(self, tokens: Sequence[Token]) -> Json | None:
        """Return the field `logprobs`; None if not requested."""
        if self.alternatives is None:
            return None
        return {"content": self.content_of(tokens), "refusal": None}

    def content_of(self, tokens: Sequence[Token]) -> list[Json]:
        """Return the items of `logprobs.content`."""
        return [
            {
                **_with_bytes(token.text, token.log_prob),
                "top_logprobs": [
                    _with_bytes(other.text, other.log_prob)
                    for other in token.alternatives or (token,) * (self.alternatives == 1)
                ],
            }
            for token in tokens
        ]


class _ChatLogProbs:
    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._content = EncodedList()

    def add(self, tokens: Sequence[Token]) -> None:
        self._content.extend(self._shape.content_of(tokens))

    def json(self) -> bytes:
        return b'{"content":' + self._content.json() + b',"refusal":null}'


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Builds texts, whole or in parts.

    Attributes:
        log_probs: number of alternatives; None without log probabilities.
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

    def whole(self, index: int, text: str, reason: FinishReason) -> Json:
        return {"index": index, "text": text, "finish_reason": reason.value}

    def collector(self) -> LogProbs | None:
        return None if self.log_probs is None else _CompletionLogProbs(self)

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
            "logprobs": self.log_probs_of(tokens, offset),
            "finish_reason": None if reason is None else reason.value,
        }

    def log_probs_of(self, tokens: Sequence[Token], offset: int) -> Json | None:
        """Return the field `logprobs` of tokens after so many characters, if requested."""
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


class _CompletionLogProbs:
    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        self._offset = 0
        self._lists: dict[str, EncodedList | None] = {}

    def add(self, tokens: Sequence[Token]) -> None:
        for name, items in (self._shape.log_probs_of(tokens, self._offset) or {}).items():
            into = self._lists.setdefault(name, None if items is None else EncodedList())
            if into is not None:
                into.extend(items)
        self._offset += sum(len(token.text) for token in tokens)

    def json(self) -> bytes:
        if not self._lists:
            return b"null"
        fields = (
            b'"%b":%b' % (name.encode(), b"null" if items is None else items.json())
            for name, items in self._lists.items()
        )
        return b"{" + b",".join(fields) + b"}"


def chunk_choice(
    index: int,
    delta: Json,
    *,
    log_probs: Json | None = None,
    reason: str | None = None,
) -> Json:
    """Build a choice of a chat chunk."""
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

    Of tokens with the same text, the likeliest is used. The first token of a prompt has none.
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
    """Tokens of a whole call. A prompt is counted once, regardless of its choices.

    A stream can include the totals in every event, so updating them must not take longer with more
    choices.
    """

    def __init__(self, call: OpenAICall) -> None:
        self._choices_each = call.n
        self._prompts = _Numbers()
        self._completions = _Numbers()
        self._cached = _Numbers()  # of each prompt, for its choice with the fewest
        self._reasoning = _Numbers()
        self._counts_reasoning = False
        self._reasoned: set[int] = set()

    def begin(self, item: AnswerItem) -> None:
        """Count the prompt of a choice before its first text."""
        if item.usage is not None:
            self._add_prompt(item.index, item.usage)

    def add(self, item: AnswerItem, *, has_reasoned: bool = False) -> None:
        """Count a choice, replacing its earlier count."""
        index, usage = item.index, item.usage
        if usage is None:
            return
        self._add_prompt(index, usage)
        self._completions.set(index, usage.completion_tokens)
        if has_reasoned:
            self._reasoned.add(index)
        if usage.reasoning_tokens is not None:
            self._counts_reasoning = True
            if index in self._reasoned:
                self._reasoning.set(index, usage.reasoning_tokens)

    def fields(self) -> dict[str, Any]:
        prompt_tokens, completion_tokens = self._prompts.sum, self._completions.sum
        fields: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        if self._cached:
            fields["prompt_tokens_details"] = {"cached_tokens": self._cached.sum}
        if self._counts_reasoning:
            fields["completion_tokens_details"] = {"reasoning_tokens": self._reasoning.sum}
        return fields

    def _add_prompt(self, index: int, usage: Usage) -> None:
        prompt = index // self._choices_each
        self._prompts.set(prompt, usage.prompt_tokens)
        if (cached := usage.cached_tokens) is not None:
            self._cached.set(prompt, min(cached, self._cached.get(prompt, cached)))


class _Numbers(dict[int, int]):
    """Numbers and their running sum."""

    sum = 0

    def set(self, key: int, value: int) -> None:
        self.sum += value - self.get(key, 0)
        self[key] = value


class WholeAnswer(WholeWriter):
    """Collects the choices of one call into one object.

    Args:
        answer_id: unique id, without the API's prefix.
        created_s: seconds since 1970.
    """

    def __init__(self, call: OpenAICall, answer_id: str, created_s: int) -> None:
        super().__init__()
        self.call = call
        self._head = _head(call, call.shape.whole_object, answer_id, created_s)
        self._log_probs: dict[int, LogProbs | None] = {}

    def push(self, item: AnswerItem) -> bytes:
        if item.index not in self._log_probs:
            self._log_probs[item.index] = self.call.shape.collector()
        if isinstance(item, TextDelta) and (log_probs := self._log_probs[item.index]):
            log_probs.add(item.tokens)
        return super().push(item)

    def add(self, answer: CollectedAnswer, delta: TextDelta) -> None:
        answer.texts.write(delta.text)

    def end(self) -> bytes:
        usage = UsageCount(self.call)
        count = len(self.call.requests) * self.call.n
        choices = b",".join([self._encoded(index, usage) for index in range(count)])
        head, counted = json_bytes(self._head)[:-1], json_bytes(usage.fields())
        return b'%b,"choices":[%b],"usage":%b}' % (head, choices, counted)

    def choice(
        self, answer: CollectedAnswer, end: GenerationEnd, usage: UsageCount
    ) -> dict[str, Any]:
        """Build one choice without log probabilities, and count its tokens."""
        usage.add(end)
        return self.call.shape.whole(end.index, answer.text, end.reason)

    def _encoded(self, index: int, usage: UsageCount) -> bytes:
        choice = json_bytes(self.choice(*self.ended(index), usage))
        log_probs = self._log_probs[index]
        return b'%b,"logprobs":%b}' % (choice[:-1], log_probs.json() if log_probs else b"null")


class EventStream:
    """Turns the choices of one call into server-sent events.

    Args:
        answer_id: unique id, without the API's prefix.
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
    """Build the body of an error response. `code` is one of this project's codes."""
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
