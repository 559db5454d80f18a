"""Choices of either API, whole and in chunks.

The contents and order of streams follow
https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trtllm_truss.requests import FinishReason, GenerationRequest, TextDelta, Token
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
        stream: whether the answer is streamed.
        include_usage: whether a stream ends with the usage.
        shape: the choices of the API.
        new_parser: makes a parser of reasoning and tool calls for each answer; None for text.
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    include_usage: bool
    shape: Shape
    new_parser: Callable[[], OutputParser] | None = None

    @property
    def n(self) -> int:
        return self.requests[0].n


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Messages and their deltas.

    Attributes:
        log_probs: whether log probabilities are requested.
        chosen_is_top: report the chosen token as the likeliest one.
    """

    id_prefix: ClassVar[str] = "chatcmpl-"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    log_probs: bool = False
    chosen_is_top: bool = False

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
        if not self.log_probs:
            return None
        content = [
            {
                **_with_bytes(token.text, token.log_prob),
                "top_logprobs": [
                    _with_bytes(other.text, other.log_prob)
                    for other in ((token,) if self.chosen_is_top else token.alternatives)
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


def _likeliest(token: Token) -> dict[str, float | None]:
    """Return log probabilities of the alternatives and of the chosen token, by their texts."""
    others = {other.text: other.log_prob for other in token.alternatives}
    return {**others, token.text: token.log_prob}
