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
    """Fail unless the value is a response. The client's type lacks `store`, which OpenAI sends."""
    assert value["store"] is False
    check(Response, {name: field for name, field in value.items() if name != "store"})


def check_response_event(value: dict[str, Any]) -> None:
    """Fail unless the value is an event of a response."""
    value = dict(value)
    if "response" in value:
        check_response(value["response"])
        value["response"] = {**value["response"]}
        del value["response"]["store"]
    check(RESPONSE_EVENTS[value["type"]], value)
