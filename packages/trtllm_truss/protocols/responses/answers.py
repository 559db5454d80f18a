"""Whole responses and event streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trtllm_truss.errors import QueueFull, RequestError, TrussError
from trtllm_truss.protocols.base import WholeWriter, sse_event
from trtllm_truss.protocols.openai.shapes import ChatShape
from trtllm_truss.protocols.responses.body import ResponsesCall
from trtllm_truss.protocols.responses.output import Json, OutputItems, without_cut_calls
from trtllm_truss.requests import AnswerItem, FinishReason, GenerationEnd, Token, Usage
from trtllm_truss.tool_calls.events import Event, TextDelta


class Answer:
    """The answer of one call.

    Args:
        call: the call.
        answer_id: unique, without the API's prefix.
        created_s: seconds since 1970.

    Attributes:
        output: its items.
    """

    def __init__(self, call: ResponsesCall, answer_id: str, created_s: int) -> None:
        self.output = OutputItems(answer_id)
        self._call = call
        self._parser = None if call.new_parser is None else call.new_parser()
        self._fields: Json = {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": created_s,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            **call.echo,
        }

    def feed(self, text: str) -> Sequence[Event]:
        """Parse more text."""
        return [TextDelta(text)] if self._parser is None else self._parser.feed(text)

    def finish(self) -> Sequence[Event]:
        """End the text."""
        return () if self._parser is None else self._parser.finish()

    def log_probs(self, tokens: Sequence[Token]) -> list[Json]:
        """Return the log probabilities of tokens, if requested."""
        if not self._call.log_probs:
            return []
        shape = ChatShape(log_probs=True, chosen_is_top=self._call.chosen_is_top)
        found = shape.log_probs_of(tokens)
        return [] if found is None else list(found["content"])

    def in_progress(self) -> Json:
        """Return the response before its first item."""
        return self._fields

    def ended(self, end: GenerationEnd) -> Json:
        """Return the response after its last item."""
        fields = {**self._fields, "status": "completed", "output": self.output.items}
        if end.reason is FinishReason.LENGTH:
            fields["incomplete_details"] = {"reason": "max_output_tokens"}
        elif self.output.has_cut_call:
            fields["incomplete_details"] = {"reason": None}
        if fields["incomplete_details"]:
            fields["status"] = "incomplete"
        fields["usage"] = _usage(end.usage, has_reasoned=self.output.has_reasoned)
        return fields

    def failed(self, error: TrussError) -> Json:
        """Return the response with the items that ended before an error."""
        details = {"code": _error_code(error), "message": error.message}
        items = self.output.items
        return {**self._fields, "status": "failed", "error": details, "output": items}


class WholeResponse(WholeWriter):
    """Collects the answer of one call into one response.

    Args:
        answer: the answer.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def body(self) -> Json:
        collected, end = self.ended(0)
        answer = self._answer
        log_probs = answer.log_probs(collected.tokens)
        events = [*answer.feed(collected.text), *answer.finish()]
        for event in without_cut_calls(events):
            answer.output.read(event, log_probs)
        answer.output.finish(end.reason)
        return answer.ended(end)


class ResponseStream:
    """Turns the answer of one call into server-sent events.

    Args:
        answer: the answer.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sequence_number = 0
        self._end: GenerationEnd | None = None

    def push(self, item: AnswerItem) -> bytes:
        answer, opening = self._answer, self._opening()
        if isinstance(item, GenerationEnd):
            self._end = item
            last = [event for part in answer.finish() for event in answer.output.read(part)]
            return opening + self._events([*last, *answer.output.finish(item.reason)])
        log_probs = answer.log_probs(item.tokens)
        parts = answer.feed(item.text)
        return opening + b"".join(
            self._events(answer.output.read(part, log_probs)) for part in parts
        )

    def end(self) -> bytes:
        assert self._end is not None, "an answer ends before its stream"
        response = self._answer.ended(self._end)
        return self._events([{"type": f"response.{response['status']}", "response": response}])

    def error(self, error: TrussError) -> bytes:
        """Return the last events of a failed stream."""
        details = {"code": error.code, "message": error.message, "param": error.param}
        failed = {"type": "response.failed", "response": self._answer.failed(error)}
        return self._opening() + self._events([{"type": "error", **details}, failed])

    def _opening(self) -> bytes:
        if self._sequence_number:
            return b""
        response = self._answer.in_progress()
        kinds = ("response.created", "response.in_progress")
        return self._events([{"type": kind, "response": response} for kind in kinds])

    def _events(self, events: Iterable[Json]) -> bytes:
        encoded = []
        for event in events:
            event["sequence_number"] = self._sequence_number
            self._sequence_number += 1
            encoded.append(sse_event(event, event["type"]))
        return b"".join(encoded)


def _usage(usage: Usage, *, has_reasoned: bool) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        # A required field: OpenAI's clients cannot read a response without it.
        "input_tokens_details": {
            "cache_write_tokens": 0,
            "cached_tokens": usage.cached_tokens or 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": (usage.reasoning_tokens or 0) if has_reasoned else 0
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error_code(error: TrussError) -> str:
    """Return the code of OpenAI's that is nearest."""
    if isinstance(error, RequestError):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, QueueFull) else "server_error"
