"""Values checked with the types of OpenAI's own client."""

from __future__ import annotations

from typing import Any, Literal

from openai.types import Completion
from openai.types.completion_choice import CompletionChoice
from pydantic import BaseModel


class OpenChoice(CompletionChoice):
    """A text that goes on: OpenAI sends null there, which its client's types leave out."""

    finish_reason: Literal["stop", "length"] | None = None  # type: ignore[assignment]


class CompletionChunk(Completion):
    choices: list[OpenChoice]  # type: ignore[assignment]


def check(kind: type[BaseModel], value: dict[str, Any]) -> None:
    """The value is one of the type, and holds nothing that the type does not name."""
    named = kind.model_validate(value, extra="forbid").model_dump(exclude_unset=True)
    assert named == value
