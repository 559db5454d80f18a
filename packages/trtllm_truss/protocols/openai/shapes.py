"""The objects of either API: choices, whole and in chunks.

The shapes are those of the API reference; what streams hold, and in which order, is told at
https://platform.openai.com/docs/api-reference/chat-streaming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from trtllm_truss.requests import FinishReason, GenerationRequest, TextDelta, Token

Json = dict[str, Any]


class Shape(Protocol):
    """What the two APIs do differently when they answer."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def opening(self, index: int) -> Json | None:
        """The choice that comes before any text of it, if there is one."""

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        """A choice with more text; `offset` characters of it have gone before."""

    def ending(self, index: int, reason: FinishReason) -> Json:
        """The choice that ends it."""

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: FinishReason) -> Json:
        """A choice that is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICall:
    """What a body asks for, and how its answer looks.

    Attributes:
        requests: one for each prompt, to be answered side by side.
        model: the name that the caller used; echoed.
        stream: whether the answer is sent as it is generated.
        include_usage: whether a stream ends with the usage.
        shape: the objects of the API that was called.
    """

    requests: tuple[GenerationRequest, ...]
    model: str
    stream: bool
    include_usage: bool
    shape: Shape

    @property
    def n(self) -> int:
        """Choices for each prompt."""
        return self.requests[0].n


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Messages and their deltas.

    Attributes:
        log_probs: whether the caller asked for log probabilities.
    """

    id_prefix: ClassVar[str] = "chatcmpl-"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    log_probs: bool = False

    def opening(self, index: int) -> Json | None:
        """Tells the role."""
        return _delta(index, {"role": "assistant", "content": ""})

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        """More content."""
        log_probs = self._log_probs(piece.tokens)
        return _delta(index, {"content": piece.text}, log_probs=log_probs)

    def ending(self, index: int, reason: FinishReason) -> Json:
        """No more content."""
        return _delta(index, {}, reason=reason)

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: FinishReason) -> Json:
        """A whole message."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._log_probs(tokens),
            "finish_reason": reason.value,
        }

    def _log_probs(self, tokens: Sequence[Token]) -> Json | None:
        if not self.log_probs:
            return None
        content = [
            {
                **_with_bytes(token.text, token.log_prob),
                "top_logprobs": [
                    _with_bytes(other.text, other.log_prob) for other in token.alternatives
                ],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Texts, whole or in parts.

    Attributes:
        log_probs: the likeliest tokens that the caller asked for; None for no log probabilities.
    """

    id_prefix: ClassVar[str] = "cmpl-"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    log_probs: int | None = None

    def opening(self, index: int) -> Json | None:
        """Nothing."""
        return None

    def part(self, index: int, piece: TextDelta, offset: int) -> Json:
        """More text."""
        return self._choice(index, piece.text, piece.tokens, None, offset)

    def ending(self, index: int, reason: FinishReason) -> Json:
        """No more text."""
        return self._choice(index, "", (), reason, 0)

    def whole(self, index: int, text: str, tokens: Sequence[Token], reason: FinishReason) -> Json:
        """A whole text."""
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


def _delta(
    index: int,
    delta: Json,
    *,
    log_probs: Json | None = None,
    reason: FinishReason | None = None,
) -> Json:
    return {
        "index": index,
        "delta": delta,
        "logprobs": log_probs,
        "finish_reason": None if reason is None else reason.value,
    }


def _with_bytes(text: str, log_prob: float | None) -> Json:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def _likeliest(token: Token) -> dict[str, float | None]:
    """The alternatives by their texts, and the chosen token whether it is among them or not."""
    others = {other.text: other.log_prob for other in token.alternatives}
    return {**others, token.text: token.log_prob}
