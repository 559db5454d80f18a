"""The types that a JSON schema allows for an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

    Each schema is looked through once, for all arguments of all answers: a caller's `enum` can have
    half a million values.

    Args:
        parameters: the schema of the arguments.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self._read: dict[int, tuple[set[str], list[Any]]] = {}

    def of(self, key: str) -> frozenset[str]:
        """Return the JSON types of an argument, `integer` as `number`.

        Follows `anyOf`, `oneOf`, `allOf`, `enum`, `const` and references inside of the schema.

        Returns:
            `string` alone if the schema does not tell.
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
        """Return the schemas to look through after one, the last one first; no more than are."""
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
    for part in str(reference).removeprefix("#").split("/")[1:]:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
