"""Values checked with the types of Anthropic's own client."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter


def check_message(value: dict[str, Any]) -> None:
    """The value is a message, and holds nothing that the types do not name."""
    _check("Message", value)


def check_error(value: dict[str, Any]) -> None:
    _check("ErrorResponse", value)


def read_events(raw: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of one of the types and named after it."""
    events = []
    for text in raw.decode().removesuffix("\n\n").split("\n\n"):
        if text.startswith(":"):
            continue
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _check("ErrorResponse" if event["type"] == "error" else "RawMessageStreamEvent", event)
        events.append(event)
    return events


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    from anthropic import types  # takes two seconds, which every test worker would spend

    return TypeAdapter(getattr(types, name, None) or getattr(types.shared, name))


def _check(name: str, value: dict[str, Any]) -> None:
    kind = _adapter(name)
    read = kind.validate_python(value, extra="forbid")
    assert kind.dump_python(read, exclude_unset=True) == value
