"""Validate values with the types of OpenAI's client."""

from __future__ import annotations

from typing import Any, Literal, get_args

from openai.types import Completion
from openai.types.completion_choice import CompletionChoice
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel


class OpenChoice(CompletionChoice):
    """A choice before its end: OpenAI sends null, which the client's types do not allow."""

    finish_reason: Literal["stop", "length"] | None = None  # type: ignore[assignment]


class CompletionChunk(Completion):
    choices: list[OpenChoice]  # type: ignore[assignment]


def check(kind: type[BaseModel], value: dict[str, Any]) -> None:
    """Fail unless the value has the type and no further fields."""
    model = kind.model_validate(value, extra="forbid")
    assert model.model_dump(exclude_unset=True, by_alias=True) == value


RESPONSE_EVENTS: dict[str, type[BaseModel]] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(ResponseStreamEvent)[0])
}
"""The types of the events of Responses, by their names."""


def check_response(value: dict[str, Any]) -> None:
    """Fail unless the value is a response."""
    assert value["store"] is False
    check(Response, _known(value))


def check_response_event(value: dict[str, Any]) -> None:
    """Fail unless the value is an event of a response."""
    value = dict(value)
    if "response" in value:
        assert value["response"]["store"] is False
        value["response"] = _known(value["response"])
    if "item" in value:
        value["item"] = _known_item(value["item"])
    check(RESPONSE_EVENTS[value["type"]], value)


def _known(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without what OpenAI sends and the client's types lack: `store`, and the
    `status` of custom calls (https://platform.openai.com/docs/guides/function-calling)."""
    known = {name: field for name, field in response.items() if name != "store"}
    return {**known, "output": [_known_item(item) for item in response["output"]]}


def _known_item(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "custom_tool_call":
        return item
    assert item["status"] in ("in_progress", "completed", "incomplete")
    return {name: field for name, field in item.items() if name != "status"}
