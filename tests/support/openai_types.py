"""Validate values with the types of OpenAI's client."""

from __future__ import annotations

from typing import Any, Literal

from openai.types import Completion
from openai.types.completion_choice import CompletionChoice
from pydantic import BaseModel


class OpenChoice(CompletionChoice):
    """A choice before its end: OpenAI sends null, which the client's types do not allow."""

    finish_reason: Literal["stop", "length"] | None = None  # type: ignore[assignment]


class CompletionChunk(Completion):
    choices: list[OpenChoice]  # type: ignore[assignment]


def check(kind: type[BaseModel], value: dict[str, Any]) -> None:
    """Fail unless the value has the type and no further fields."""
    named = kind.model_validate(value, extra="forbid").model_dump(exclude_unset=True)
    assert named == value
