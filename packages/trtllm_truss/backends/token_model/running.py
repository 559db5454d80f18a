"""A request between its first and its last response."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from trtllm_truss.backends.token_model.request import GenerationRequest
from trtllm_truss.backends.token_model.responses import (
    Beam,
    ResponseSender,
    build_outputs,
)
from trtllm_truss.backends.token_model.words import StopWords


class RunningRequest:
    """The tokens of a request so far, and how many of them were sent.

    Attributes:
        beams: the sequences, the best one first.
        sent: tokens of the first beam that were sent.
    """

    def __init__(
        self,
        request: GenerationRequest,
        sender: ResponseSender,
        *,
        normalize_log_probs: bool = True,
    ) -> None:
        self.request = request
        self.sender = sender
        self.beams = [Beam() for _ in range(request.sampling.beam_width)]
        self._normalize_log_probs = normalize_log_probs
        prompt = request.prompt.tolist()
        self._stop_words = [StopWords(request.stop_words, prompt) for _ in self.beams]
        self._is_first = True
        self.sent = 0
        self._sent_at = -math.inf

    @property
    def generated(self) -> int:
        """Return the number of tokens so far, of the first beam."""
        return len(self.beams[0].tokens)

    def add(
        self,
        token: int,
        log_prob: float | None = None,
        top: Sequence[tuple[int, float]] = (),
        *,
        beam: int = 0,
    ) -> bool:
        """Add a token, unless it is the end token.

        Args:
            token: its id.
            log_prob: None leaves it out.
            top: the likeliest ids with their log probabilities, best first.
            beam: the place of its beam.

        Returns:
            True if the beam ends with it.
        """
        if token == self.request.end_id:
            return True
        sequence = self.beams[beam]
        sequence.tokens.append(token)
        if log_prob is not None:
            sequence.log_probs.append(log_prob)
            sequence.top.append(top)
        return self._stop_words[beam].complete(token)

    def is_due(self, interval_s: float) -> bool:
        """Return True if a stream has waited for its next response long enough."""
        return self.request.streaming and time.monotonic() >= self._sent_at + interval_s

    def send(self, *, final: bool, cached_tokens: int | None = None) -> None:
        """Send the new tokens, or all that were generated if the answer is not streamed.

        Args:
            final: it is the last response.
            cached_tokens: prompt tokens that the KV cache had; sent once.
        """
        sent, self.sent = self.sent, self.generated
        is_first, self._is_first = self._is_first, False
        self._sent_at = time.monotonic()
        outputs = build_outputs(
            self.request,
            self.beams,
            first_new=sent if self.request.streaming else 0,
            normalize_log_probs=self._normalize_log_probs,
            cached_tokens=cached_tokens if is_first else None,
        )
        self.sender.send(outputs, final=final)
