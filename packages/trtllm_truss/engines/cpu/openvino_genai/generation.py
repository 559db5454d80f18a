"""One running request: tokens from the pipeline's handle -> responses."""

from __future__ import annotations

import openvino_genai

from trtllm_truss.backends.token_model.request import GenerationRequest
from trtllm_truss.backends.token_model.responses import ResponseSender, send_empty
from trtllm_truss.backends.token_model.running import RunningRequest

_RUNNING = openvino_genai.GenerationFinishReason.NONE
_STATUS = openvino_genai.GenerationStatus


class Generation(RunningRequest):
    def __init__(
        self,
        request: GenerationRequest,
        sender: ResponseSender,
        handle: openvino_genai.GenerationHandle,
        *,
        normalize_log_probs: bool = True,
        cached_tokens: int | None = None,
    ) -> None:
        super().__init__(request, sender, normalize_log_probs=normalize_log_probs)
        self._handle = handle
        self._cached_tokens = cached_tokens

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
        ended = self._append(0, result)
        if ended or self.is_due(interval_s):
            self.send(final=ended, cached_tokens=self._cached_tokens)
        if ended:
            self._handle.cancel()  # the pipeline does not know of stop words
        return ended

    def cancel(self) -> None:
        """Stop generating and end with an empty response."""
        self._handle.cancel()
        send_empty(self.request, self.sender)

    def fail(self, message: str) -> None:
        """End with an error that is not the caller's fault."""
        self._handle.cancel()
        self.sender.fail(message, caller_at_fault=False)

    def _append(self, index: int, result: openvino_genai.GenerationOutput) -> bool:
        """Add new tokens up to the end token (excluded) or a stop word's last one (included)."""
        log_probs = result.generated_log_probs
        for token, log_prob in zip(result.generated_ids, log_probs, strict=False):
            if self.add(token, log_prob, beam=index):
                return True
        return bool(result.finish_reason != _RUNNING)

    def _end_beams(self, results: list[openvino_genai.GenerationOutput]) -> bool:
        """Send all beams at once, each cut after its first stop word."""
        results.sort(key=lambda result: result.score, reverse=True)
        for index, result in enumerate(results):
            self._append(index, result)
        self.send(final=True, cached_tokens=self._cached_tokens)
        return True

    def _end_without_result(self) -> bool:
        status = self._handle.get_status()
        if status == _STATUS.RUNNING:
            return False
        self.fail(f"The engine dropped this request ({status.name}): its KV cache is full.")
        return True
