"""Values checked with the types of Anthropic's own client."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_ERROR: TypeAdapter[Any] = TypeAdapter(ErrorResponse)
_MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)


def check_message(value: dict[str, Any]) -> None:
    """The value is a message, and holds nothing that the types do not name."""
    _check(_MESSAGE, value)


def check_error(value: dict[str, Any]) -> None:
    _check(_ERROR, value)


def read_events(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of one of the types and named after it."""
    events = []
    for text in raw.decode().removesuffix("\n\n").split("\n\n"):
        if text.startswith(":"):
            continue
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _check(_ERROR if event["type"] == "error" else _EVENT, event)
        events.append(event)
    return events


def _check(kind: TypeAdapter[Any], value: dict[str, Any]) -> None:
    read = kind.validate_python(value, extra="forbid")
    assert kind.dump_python(read, exclude_unset=True) == value
