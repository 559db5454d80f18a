"""The interface of a protocol: read bodies, write answers and errors."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trtllm_truss.errors import InternalError, TrussError
from trtllm_truss.requests import AnswerItem, GenerationEnd, GenerationRequest, TextDelta, Token

JSON_MEDIA_TYPE = "application/json"
SSE_MEDIA_TYPE = "text/event-stream"

Defaults = Mapping[str, Any]
"""Values for fields that a body leaves out, by the names of the predict body."""


class Writer(Protocol):
    """Turns all answers to one call into bytes, as they come."""

    def push(self, item: AnswerItem) -> bytes:
        """What the next item adds, possibly nothing."""

    def end(self) -> bytes:
        """What follows once every answer has ended."""

    def error(self, error: TrussError) -> bytes:
        """What ends a stream that broke off.

        Raises:
            TrussError: `error` itself, where only breaking off the response can say it.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """One body, read.

    Attributes:
        requests: what is to be generated, side by side.
        writer: turns the answers into bytes.
        media_type: of these; JSON is sent whole, everything else as it comes.
    """

    requests: Sequence[GenerationRequest]
    writer: Writer
    media_type: str


class ApiAdapter(Protocol):
    """One protocol, as one client speaks it."""

    @property
    def name(self) -> str:
        """What metrics and log call it."""

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        """What a body asks for.

        Args:
            body: the JSON object that the caller sent.
            accept: the header of that name; empty if there is none.
            call_id: unique, for answers that have an id.

        Raises:
            InvalidRequest: it cannot be understood, or asks for what is not served.
        """

    def error_body(self, error: TrussError) -> Any:
        """The JSON value of an error response."""


@dataclass(slots=True)
class CollectedAnswer:
    """The items of one answer, put together; `end` is None until it has ended."""

    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    end: GenerationEnd | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.texts)


class WholeWriter:
    """A `Writer` of one JSON value, which `body` makes of all answers in the end."""

    def __init__(self) -> None:
        self._answers: defaultdict[int, CollectedAnswer] = defaultdict(CollectedAnswer)

    def push(self, item: AnswerItem) -> bytes:
        """Collects the item."""
        answer = self._answers[item.index]
        if isinstance(item, TextDelta):
            answer.texts.append(item.text)
            answer.tokens.extend(item.tokens)
        else:
            answer.end = item
        return b""

    def end(self) -> bytes:
        """The value."""
        return json_bytes(self.body())

    def error(self, error: TrussError) -> bytes:
        """Raises it."""
        raise error

    def body(self) -> Any:
        """The value, once every answer has ended.

        Raises:
            InternalError: one has not.
        """
        raise NotImplementedError

    def ended(self, index: int) -> tuple[CollectedAnswer, GenerationEnd]:
        """An answer and its end.

        Raises:
            InternalError: it has none.
        """
        answer = self._answers[index]
        if answer.end is None:
            raise InternalError(f"answer {index} has no end.")
        return answer, answer.end


def json_bytes(value: Any) -> bytes:
    """Encode as Starlette's `JSONResponse` does."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def sse_event(value: Any) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
