"""What a caller wants, whatever protocol asked for it, and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtllm_truss.triton.request import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request with every default filled in.

    Attributes:
        prompt: the text to continue; None when `messages` are given instead.
        messages: a conversation for the tokenizer's chat template; None when `prompt` is given.
        max_tokens: tokens to generate.
        max_tokens_given: whether the caller chose `max_tokens`; a default is cut down to what
            the context leaves, a choice is not.
        stop_words: texts that end the answer just before them.
        bad_words: texts that must not be generated.
        beam_width: beams; 1 means no beam search.
        ignore_eos: whether generation goes on past the model's end of sequence.
        sampling: how tokens are chosen; without a seed a random one is taken.
    """

    prompt: str | None
    messages: Sequence[Mapping[str, Any]] | None
    max_tokens: int
    max_tokens_given: bool = True
    stop_words: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    beam_width: int = 1
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)


class FinishReason(str, enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended it, or a stop word was reached."""
    LENGTH = "length"
    """`max_tokens` were generated."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a request took in and gave out."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain to be part of the answer, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an answer; exactly one, and last."""

    reason: FinishReason
    usage: Usage
