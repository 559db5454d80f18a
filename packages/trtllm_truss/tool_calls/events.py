"""The parts of an answer, in the order in which they become certain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from trtllm_truss.tool_calls.schema_types import ArgumentTypes


@dataclass(frozen=True)
class Tool:
    """A function that the request offers.

    Attributes:
        name: its name.
        parameters: the JSON schema of its arguments; may be empty.
    """

    name: str
    parameters: Mapping[str, Any]

    @cached_property
    def argument_types(self) -> ArgumentTypes:
        """The types of its arguments."""
        return ArgumentTypes(self.parameters)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins; its arguments follow.

    Attributes:
        index: the number of calls before it.
        name: the function's name.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments, as JSON text; never empty."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call ends.

    Attributes:
        index: as in `CallStarted`.
        complete: whether the arguments are a whole JSON object. False for a call that was cut off
            or turned out malformed; the arguments are then the beginning of an object.
    """

    index: int
    complete: bool


def call_as_text(name: str, arguments: str = "") -> str:
    """Return the beginning of a call, for a call that was cut off."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}'


Event: TypeAlias = TextDelta | ReasoningDelta | CallStarted | ArgumentsDelta | CallEnded
