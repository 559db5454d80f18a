"""The types that a JSON schema allows for an argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_SCHEMAS = 64
_TYPE_NAMES = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
}


def value_types(parameters: Mapping[str, Any], key: str) -> frozenset[str]:
    """Return the JSON types of an argument, `integer` as `number`.

    Follows `anyOf`, `oneOf`, `allOf`, `enum`, `const` and references inside of the schema.

    Args:
        parameters: the schema of a function's arguments.
        key: the argument.

    Returns:
        `string` alone if the schema does not tell.
    """
    properties = parameters.get("properties")
    first = properties.get(key) if isinstance(properties, Mapping) else None
    types: set[str] = set()
    schemas = [first]
    for _ in range(_MAX_SCHEMAS):  # references may be circular
        if not schemas:
            break
        schema = schemas.pop()
        if not isinstance(schema, Mapping):
            continue
        types |= _own_types(schema)
        for keyword in ("anyOf", "oneOf", "allOf"):
            schemas += _as_list(schema.get(keyword))
        if "$ref" in schema:
            schemas.append(_resolve(parameters, schema["$ref"]))
    return frozenset(types or {"string"})


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("type")
    types = {name for name in [names, *_as_list(names)] if isinstance(name, str)}
    values = [*_as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    if not types:
        types = {_TYPE_NAMES.get(type(value), "null") for value in values}
    return {"number" if name == "integer" else name for name in types}


def _resolve(root: Mapping[str, Any], reference: object) -> Any:
    node: Any = root
    for part in str(reference).removeprefix("#").split("/")[1:]:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
