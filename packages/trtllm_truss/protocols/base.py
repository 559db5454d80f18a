"""The interface of a protocol: read bodies, write answers and errors."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trtllm_truss.errors import InternalError, TrussError
from trtllm_truss.requests import AnswerItem, GenerationEnd, GenerationRequest, TextDelta, Token

JSON_MEDIA_TYPE = "application/json"
SSE_MEDIA_TYPE = "text/event-stream"
TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"

# `json.dumps` builds an encoder at every call with options.
_encode = json.JSONEncoder(ensure_ascii=False).encode
_encode_compact = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode

Defaults = Mapping[str, Any]
"""Values of missing fields, by the names of the predict body."""


class Writer(Protocol):
    """Encodes the answers of one call."""

    def push(self, item: AnswerItem) -> bytes:
        """Encode the next item; may return nothing."""

    def end(self) -> bytes:
        """Encode the end of all answers."""

    def error(self, error: TrussError) -> bytes:
        """Encode an error within a stream.

        Raises:
            TrussError: `error`, if the protocol can only abort the response.
        """


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body.

    Attributes:
        requests: requests to run concurrently.
        writer: encodes the answers.
        media_type: content type; JSON is sent whole, other types are streamed.
    """

    requests: Sequence[GenerationRequest]
    writer: Writer
    media_type: str


class ApiAdapter(Protocol):
    """One protocol."""

    @property
    def name(self) -> str:
        """Name in metrics and log."""

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        """Parse a body.

        Args:
            body: the JSON object.
            accept: the `Accept` header or an empty string.
            call_id: unique id for answers with an id.

        Raises:
            InvalidRequest: the body is invalid or has unsupported fields.
        """

    def error_body(self, error: TrussError) -> Any:
        """The JSON value of an error response."""


@dataclass(slots=True)
class CollectedAnswer:
    """The collected items of one answer; `end` is None until it has ended."""

    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    end: GenerationEnd | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class WholeWriter:
    """A `Writer` of one JSON value, built by `body` from all answers."""

    def __init__(self) -> None:
        self._answers: defaultdict[int, CollectedAnswer] = defaultdict(CollectedAnswer)

    def push(self, item: AnswerItem) -> bytes:
        answer = self._answers[item.index]
        if isinstance(item, TextDelta):
            answer.texts.append(item.text)
            answer.tokens.extend(item.tokens)
        else:
            answer.end = item
        return b""

    def end(self) -> bytes:
        return json_bytes(self.body())

    def error(self, error: TrussError) -> bytes:
        raise error

    def body(self) -> Any:
        """Build the JSON value.

        Raises:
            InternalError: an answer has no end.
        """
        raise NotImplementedError

    def ended(self, index: int) -> tuple[CollectedAnswer, GenerationEnd]:
        """Return an answer and its end.

        Raises:
            InternalError: the answer has no end.
        """
        answer = self._answers[index]
        if answer.end is None:
            raise InternalError(f"answer {index} has no end.")
        return answer, answer.end


class _PromptCount(WholeWriter):
    """Writes the number of tokens of a prompt."""

    def __init__(self, kind: Mapping[str, Any]) -> None:
        super().__init__()
        self._kind = kind

    def body(self) -> Any:
        return {**self._kind, "input_tokens": self.ended(0)[1].usage.prompt_tokens}


@dataclass(frozen=True, slots=True)
class CountAdapter:
    """Counts the tokens of prompts: a protocol whose answers are empty.

    Attributes:
        protocol: reads the bodies and writes the errors.
        name: its name in metrics and log.
        filling: fields that the protocol requires beyond the prompt.
        kind: further fields of answers.
    """

    protocol: ApiAdapter
    name: str
    filling: Mapping[str, Any] = field(default_factory=dict)
    kind: Mapping[str, Any] = field(default_factory=dict)

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        (request,) = self.protocol.read({**self.filling, **body}, accept, call_id).requests
        request = replace(request, max_tokens=0, guide=None, echo=False)
        return Call([request], _PromptCount(self.kind), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return self.protocol.error_body(error)


def json_bytes(value: Any) -> bytes:
    """Encode as Starlette's `JSONResponse` does."""
    return _encode_compact(value).encode()


def sse_event(value: Any, name: str = "") -> bytes:
    """Encode one server-sent event, with a name if it has one."""
    head = f"event: {name}\ndata: " if name else "data: "
    return f"{head}{_encode(value)}\n\n".encode()


def sse_text(text: str) -> bytes:
    """Encode the event `{"text": …}`, in a third of the time of `sse_event`."""
    return f'data: {{"text": {_encode(text)}}}\n\n'.encode()
