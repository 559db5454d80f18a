"""One running request: the LLM's cumulative outputs -> responses."""

from __future__ import annotations

from typing import Any

from trtllm_truss.backends.token_model.responses import ResponseSender, send_empty
from trtllm_truss.backends.token_model.running import RunningRequest
from trtllm_truss.engines.checkpoint.llm_api.request import LlmRequest, wants_log_probs


class Generation(RunningRequest):
    """A running request of the LLM; for the event loop's thread.

    Attributes:
        aborted: `abort` was called.
        ended: the final response was sent.
    """

    def __init__(
        self, request: LlmRequest, sender: ResponseSender, *, normalize_log_probs: bool = True
    ) -> None:
        super().__init__(request.generation, sender, normalize_log_probs=normalize_log_probs)
        self.llm_request = request
        self.aborted = False
        self.ended = False
        self._wants_log_probs = wants_log_probs(self.request)
        self._result: Any = None
        self._read = [0] * len(self.beams)
        self._complete = [False] * len(self.beams)

    def begin(self, result: Any) -> None:
        """Take the `RequestOutput` that `abort` refers to."""
        self._result = result

    def take(self, result: Any, interval_s: float) -> None:
        """Read the new tokens of a `RequestOutput`; send them, or hold them back.

        The library changes the same object at each step, so nothing of it is kept. A stop word or
        the end token ends the request; the engine is then told so.

        Args:
            result: the cumulative output. A response of the library may repeat old tokens.
            interval_s: minimum time between responses.
        """
        if self.ended:
            return
        for index, output in enumerate(result.outputs[: len(self.beams)]):
            self._append(index, output)
        reason = result.outputs[0].finish_reason
        finished = bool(result.finished)
        if finished and reason in ("cancelled", "timeout") and not all(self._complete):
            self._end_early(reason)
        elif finished or all(self._complete):
            self._send(final=True)
            if not finished:
                self.abort()
        elif self.generated > self.sent and self.is_due(interval_s):
            self._send(final=False)

    def abort(self) -> None:
        """Abort the request; the engine sends a last response in a later step."""
        if not self.aborted and self._result is not None:
            self._result.abort()
        self.aborted = True

    def close(self) -> None:
        """End a request whose output has ended, if not ended yet."""
        if self.aborted:
            self.cancel()
        else:
            self.fail("The engine ended its answer without finishing it.")

    def cancel(self) -> None:
        """End with an empty response, if not ended yet."""
        if not self.ended:
            self.ended = True
            send_empty(self.request, self.sender)

    def fail(self, message: str, *, caller_at_fault: bool = False) -> None:
        """End with an error, if not ended yet."""
        if not self.ended:
            self.ended = True
            self.sender.fail(message, caller_at_fault=caller_at_fault)

    def _append(self, index: int, output: Any) -> None:
        """Add new tokens up to the end token (excluded) or a stop word's last one (included)."""
        read = self._read[index]
        tokens = output.token_ids[read:]  # empty if the library has cut the list
        log_probs = output.logprobs[read:] if self._wants_log_probs and output.logprobs else ()
        for position, token in enumerate(tokens):
            if self._complete[index]:
                return
            if self._wants_log_probs and position >= len(log_probs):
                return  # they arrive later
            self._read[index] += 1
            log_prob, top = None, []
            if self._wants_log_probs:
                log_prob = _log_prob(log_probs[position], token)
                top = _top(log_probs[position], self.request.top_log_probs)
            self._complete[index] = self.add(int(token), log_prob, top, beam=index)

    def _end_early(self, reason: str) -> None:
        if self.aborted:
            self.cancel()
        else:
            self.fail(f"The engine dropped this request ({reason}).")

    def _send(self, *, final: bool) -> None:
        self.ended = final
        # `GenerationResultBase` of tensorrt_llm/executor/result.py has it from 1.2 on.
        self.send(final=final, cached_tokens=getattr(self._result, "cached_tokens", None))


def _top(entry: Any, count: int) -> list[tuple[int, float]]:
    """Return the likeliest tokens, best first, without a sampled one below them."""
    if not (count and isinstance(entry, dict)):
        return []
    found = [(int(token), _log_prob(entry, token)) for token in entry]
    return sorted(found, key=lambda pair: -pair[1])[:count]


def _log_prob(entry: Any, token: int) -> float:
    """Return the value of the sampled token: of a dict by id, or a plain number (1.3)."""
    value: Any = entry[token] if isinstance(entry, dict) else entry
    return float(getattr(value, "logprob", value))
