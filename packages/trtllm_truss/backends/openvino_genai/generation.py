"""One running request: tokens from the pipeline's handle -> responses."""

from __future__ import annotations

import math
import time

import openvino_genai

from trtllm_truss.backends.token_model.request import GenerationRequest
from trtllm_truss.backends.token_model.responses import (
    Beam,
    Outputs,
    ResponseSender,
    build_outputs,
    send_empty,
)
from trtllm_truss.backends.token_model.words import StopWords

_RUNNING = openvino_genai.GenerationFinishReason.NONE
_STATUS = openvino_genai.GenerationStatus


class Generation:
    def __init__(
        self,
        request: GenerationRequest,
        sender: ResponseSender,
        handle: openvino_genai.GenerationHandle,
        *,
        normalize_log_probs: bool = True,
        cached_tokens: int | None = None,
    ) -> None:
        self.request = request
        self.sender = sender
        self._handle = handle
        self._normalize_log_probs = normalize_log_probs
        self._sent = 0
        self._cached_tokens = cached_tokens
        self._sent_at = -math.inf
        self._beams = [Beam()]
        self._stop_words = StopWords(request.stop_words, request.prompt.tolist())

    def collect(self, interval_s: float = 0.0) -> bool:
        """Collect the tokens of the last step; return True if the request has ended.

        Args:
            interval_s: minimum time between responses; tokens are held back meanwhile.
        """
        if not self._handle.can_read():
            return False  # still reading the prompt, or waiting for room in the KV cache
        results = self._handle.read()
        if not results:
            return self._end_without_result()
        if self.request.sampling.beam_width > 1:
            return self._end_beams(list(results.values()))
        (result,) = results.values()
        ended = self._append(self._beams[0], result, self._stop_words)
        now = time.monotonic()
        if ended or (self.request.streaming and now >= self._sent_at + interval_s):
            self.sender.send(self._outputs(self._sent), final=ended)
            self._sent, self._sent_at = self.generated, now
        if ended:
            self._handle.cancel()  # the pipeline does not know of stop words
        return ended

    @property
    def generated(self) -> int:
        """Return the number of tokens so far; for beams it is known at the end only."""
        return len(self._beams[0].tokens)

    def cancel(self) -> None:
        """Stop generating and end with an empty response."""
        self._handle.cancel()
        send_empty(self.request, self.sender)

    def fail(self, message: str) -> None:
        """End with an error that is not the caller's fault."""
        self._handle.cancel()
        self.sender.fail(message, caller_at_fault=False)

    def _append(
        self, beam: Beam, result: openvino_genai.GenerationOutput, stop_words: StopWords
    ) -> bool:
        """Add new tokens up to the end token (excluded) or a stop word's last one (included)."""
        log_probs = result.generated_log_probs
        for position, token in enumerate(result.generated_ids):
            if token == self.request.end_id:
                return True
            beam.tokens.append(token)
            beam.log_probs.append(log_probs[position])
            if stop_words.complete(token):
                return True
        return bool(result.finish_reason != _RUNNING)

    def _end_beams(self, results: list[openvino_genai.GenerationOutput]) -> bool:
        """Send all beams at once, each cut after its first stop word."""
        results.sort(key=lambda result: result.score, reverse=True)
        self._beams = [Beam() for _ in results]
        for beam, result in zip(self._beams, results, strict=True):
            stop_words = StopWords(self.request.stop_words, self.request.prompt.tolist())
            self._append(beam, result, stop_words)
        self.sender.send(self._outputs(0), final=True)
        return True

    def _end_without_result(self) -> bool:
        status = self._handle.get_status()
        if status == _STATUS.RUNNING:
            return False
        self.fail(f"The engine dropped this request ({status.name}): its KV cache is full.")
        return True

    def _outputs(self, sent: int) -> Outputs:
        return build_outputs(
            self.request,
            self._beams,
            first_new=sent if self.request.streaming else 0,
            normalize_log_probs=self._normalize_log_probs,
            cached_tokens=self._cached_tokens if sent == 0 else None,
        )
