"""The parts of a choice, and the functions that it may call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import unquote

_MAX_SCHEMAS = 64
_NAMES = {
    **{name: name for name in ("string", "number", "boolean", "object", "array", "null")},
    "integer": "number",
}
_TYPE_NAMES = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}


class ArgumentTypes:
    """The types of one function's arguments.

    Each schema is searched once, for all arguments of all choices: a caller's `enum` can have half
    a million values.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._read: dict[int, tuple[set[str], list[Any]]] = {}

    def of(self, key: str) -> frozenset[str]:
        """Return an argument's JSON types, with `integer` as `number`.

        Follows `anyOf`, `oneOf`, `allOf`, `enum`, `const` and references within the schema.

        Returns:
            Only `string` if the schema does not specify types.
        """
        properties = self._parameters.get("properties")
        first = properties.get(key) if isinstance(properties, Mapping) else None
        types: set[str] = set()
        schemas = [first]
        for _ in range(_MAX_SCHEMAS):  # references may be circular
            if not schemas:
                break
            schema = schemas.pop()
            if not isinstance(schema, Mapping):
                continue
            if id(schema) not in self._read:
                self._read[id(schema)] = _own_types(schema), self._followers(schema)
            own, followers = self._read[id(schema)]
            types |= own
            schemas += followers
        return frozenset(types or {"string"})

    def _followers(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return the schemas to search after one, last one first, limited in number."""
        followers: list[Any] = []
        for keyword in ("anyOf", "oneOf", "allOf"):
            followers += _as_list(schema.get(keyword))[-_MAX_SCHEMAS:]
        if "$ref" in schema:
            followers.append(_resolve(self._parameters, schema["$ref"]))
        return followers


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("type")
    types = {_NAMES[n] for n in [names, *_as_list(names)] if isinstance(n, str) and n in _NAMES}
    values = [*_as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return types or {_TYPE_NAMES.get(type(value), "null") for value in values}


def _resolve(root: Mapping[str, Any], reference: object) -> Any:
    node: Any = root
    for part in unquote(str(reference).removeprefix("#")).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")  # RFC 6901
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True)
class Tool:
    """A function that the request offers.

    Attributes:
        parameters: the JSON schema of its arguments; may be empty.
        is_strict: refuse a forced call if the engine would not follow every part of the schema.
    """

    name: str
    parameters: Mapping[str, Any]
    is_strict: bool = False

    @cached_property
    def argument_types(self) -> ArgumentTypes:
        """The types of its arguments."""
        return ArgumentTypes(self.parameters)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """More text of the choice; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call starts; its arguments follow.

    Attributes:
        index: number of calls before it.
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
    """A call has finished.

    Attributes:
        index: as in `CallStarted`.
        complete: the arguments are a whole JSON object. False for a call that was cut off or turned
            out malformed; the arguments then end where it was cut, or with the rest of the call as
            the model wrote it.
    """

    index: int
    complete: bool


def call_as_text(name: str, arguments: str = "") -> str:
    """Return the start of a call, for a call that was cut off."""
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments}'


Event: TypeAlias = ParsedText | ReasoningDelta | CallStarted | ArgumentsDelta | CallEnded
