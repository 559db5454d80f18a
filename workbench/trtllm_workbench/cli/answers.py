"""Stream one answer of the predict API, with its timings; shared by `demo` and `chat`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtllm_truss.errors import EngineUnavailable, TrussError
from trtllm_workbench.cli.http_client import CUT_OFF, post

REQUEST_LINES = ("Handled request", " request engine_request_id=")
"""Marks of log lines that would interrupt an answer on a terminal."""


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """The end of an answer.

    Attributes:
        prompt_tokens: of the request, by the tokenizer's count.
        tokens: generated ones.
        finish_reason: `stop` or `length`.
        first_s: from the request to the first text; 0 without text.
        whole_s: from the request to the end.
    """

    prompt_tokens: int
    tokens: int
    finish_reason: str
    first_s: float
    whole_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second from the first text to the end."""
        rest_s = self.whole_s - self.first_s
        return self.tokens / rest_s if rest_s > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"[{self.tokens} tokens, finish reason {self.finish_reason}; first token after "
            f"{self.first_s:.2f} s, then {self.tokens_per_s:.0f} tokens/s]"
        )


def stream_answer(
    url: str, body: Mapping[str, object], write: Callable[[str], object]
) -> AnswerSummary:
    """Send a request and pass each piece of the answer to `write` as it arrives.

    Raises:
        EngineUnavailable: the server is unreachable, or the answer was cut off.
        TrussError: the server refused the request, or failed during the answer.
    """
    start = time.monotonic()
    first_s = 0.0
    with post(url, body, accept="text/event-stream") as answer:
        for event in answer.events():
            if "error" in event:
                raise TrussError(event["error"]["message"])
            if "text" in event:
                first_s = first_s or time.monotonic() - start
                write(event["text"])
            else:
                usage = event["usage"]
                return AnswerSummary(
                    prompt_tokens=usage["prompt_tokens"],
                    tokens=usage["completion_tokens"],
                    finish_reason=event["finish_reason"],
                    first_s=first_s,
                    whole_s=time.monotonic() - start,
                )
    raise EngineUnavailable(CUT_OFF)
