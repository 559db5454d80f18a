"""Map the functions that a model knows to the tools of a Responses request.

Models only know functions. A function in a namespace is offered to them as `<namespace>__<name>`,
and a custom tool, whose input is free text, as a function with one string argument. `Origins`
converts both back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

_INPUT = "input"
"""The argument of the function that represents a custom tool."""

INPUT_SCHEMA = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}


class Origin(NamedTuple):
    """The caller's tool behind a function.

    Attributes:
        name: its name within the namespace.
        is_custom: its input is free text.
    """

    name: str
    namespace: str | None = None
    is_custom: bool = False


Origins = Mapping[str, Origin]
"""Tools by the names of the functions that represent them."""


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name under which the model knows a function."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str) -> dict[str, str]:
    """Return the arguments of the function that represents a custom tool."""
    return {_INPUT: text}


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool; arguments of another shape are returned unchanged."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
