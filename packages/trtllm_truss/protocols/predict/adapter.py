"""The predict protocol: plain text, server-sent events, or one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    Call,
    Defaults,
    WholeWriter,
    sse_event,
    sse_text,
)
from trtllm_truss.protocols.predict.body import parse_predict, response_form
from trtllm_truss.protocols.tool_use import ANY_FORMATS, ModelFormats
from trtllm_truss.requests import AnswerItem, GenerationEnd, TextDelta


@dataclass(frozen=True, slots=True)
class PredictAdapter:
    """The predict protocol.

    Attributes:
        defaults: values of missing fields.
        formats: the model's formats of tool calls and reasoning.
        name: its name in metrics and log.
    """

    defaults: Defaults
    formats: ModelFormats = ANY_FORMATS
    name: str = "predict"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        request, stream = parse_predict(body, self.defaults, self.formats)
        form = response_form(accept, stream)
        if form == "json":
            return Call([request], WholeText(), JSON_MEDIA_TYPE)
        if form == "events":
            return Call([request], Events(), SSE_MEDIA_TYPE)
        return Call([request], PlainText(), TEXT_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> dict[str, Any]:
        """Return `{"error": {"code", "message", "param"}}`."""
        return _error_body(error)


class PlainText:
    """Text only; an error aborts the response."""

    def push(self, item: AnswerItem) -> bytes:
        return item.text.encode() if isinstance(item, TextDelta) else b""

    def end(self) -> bytes:
        """Nothing."""
        return b""

    def error(self, error: TrussError) -> bytes:
        raise error


class Events:
    """One event per delta, and a last one with finish reason and usage."""

    def push(self, item: AnswerItem) -> bytes:
        """Return `data: {"text": …}`, or at the end `data: {"finish_reason": …, "usage": …}`."""
        return sse_text(item.text) if isinstance(item, TextDelta) else sse_event(_end_fields(item))

    def end(self) -> bytes:
        """Nothing."""
        return b""

    def error(self, error: TrussError) -> bytes:
        """Return `data: {"error": …}`."""
        return sse_event(_error_body(error))


class WholeText(WholeWriter):
    """`{"text": …, "finish_reason": …, "usage": …}`."""

    def body(self) -> dict[str, Any]:
        answer, end = self.ended(0)
        return {"text": answer.text, **_end_fields(end)}


def _error_body(error: TrussError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, "param": error.param}}


def _end_fields(end: GenerationEnd) -> dict[str, Any]:
    usage = {
        "prompt_tokens": end.usage.prompt_tokens,
        "completion_tokens": end.usage.completion_tokens,
    }
    if end.usage.cached_tokens is not None:
        usage["cached_tokens"] = end.usage.cached_tokens
    return {"finish_reason": end.reason.value, "usage": usage}
