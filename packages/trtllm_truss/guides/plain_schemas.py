"""Detect schemas whose grammars cannot become ambiguous, for which a few tokens suffice as a trial.

Tokens become slower if the parser follows more and more readings of a text. In the grammar of a
plain schema, the next character decides between the alternatives, except for names and values with
a common prefix, which end. There are never more readings than names, values and choices at the
root. Patterns, lengths, counts, further keys and choices of one type have no such limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.guides.schema_parts import (
    CHOICES,
    OF_NUMBERS,
    OF_VALUES,
    WITHOUT_EFFECT,
    References,
    types_of,
)

_MAX_CHOICES = 64  # at the root: a call of one of this many tools
_DEFINITIONS = ("$defs", "definitions")
_PLAIN = {"type", "properties", "required", "items", "additionalProperties", *OF_NUMBERS}
_EFFECTIVE = {*OF_VALUES, *CHOICES, *WITHOUT_EFFECT}


def is_plain(schema: Any) -> bool:
    """Return True if a converted schema is plain."""
    if not isinstance(schema, Mapping):
        return isinstance(schema, bool)
    references = References(schema)
    parts: list[Any] = [schema]
    choices = schema.get("anyOf")
    if isinstance(choices, list) and _keywords(schema) == {"anyOf"}:
        parts = choices if len(choices) <= _MAX_CHOICES else [None]
    for name in _DEFINITIONS:
        found = schema.get(name, {})
        parts = [*parts, *(found.values() if isinstance(found, Mapping) else [None])]
    return all(_is_plain(part, references) for part in parts)


def _keywords(schema: Mapping[str, Any]) -> set[str]:
    return schema.keys() & _EFFECTIVE


def _is_plain(schema: Any, references: References) -> bool:
    if not isinstance(schema, Mapping):
        return isinstance(schema, bool)
    keywords = _keywords(schema)
    if "$ref" in schema:
        return keywords == {"$ref"} and _is_definition(schema["$ref"])
    if "anyOf" in schema:
        return keywords == {"anyOf"} and _differ_at_once(schema["anyOf"], references)
    if not keywords <= _PLAIN:
        return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type")
    if isinstance(types, list) and "integer" in types and "number" in types:
        return False
    if schema.get("additionalProperties", False) is not False:
        return False
    properties = schema.get("properties", {})
    members = properties.values() if isinstance(properties, Mapping) else [None]
    return all(_is_plain(part, references) for part in (*members, schema.get("items", True)))


def _is_definition(pointer: Any) -> bool:
    """Return True if `is_plain` visits the target of a reference."""
    parts = pointer.split("/") if isinstance(pointer, str) else []
    return len(parts) == 3 and parts[0] == "#" and parts[1] in _DEFINITIONS


def _differ_at_once(choices: Any, references: References) -> bool:
    """Return True if the first character of a value determines the choice."""
    seen: set[str] = set()
    for choice in choices if isinstance(choices, list) else [None]:
        named = references.followed(choice)
        if not isinstance(named, Mapping) or not _is_plain(choice, references):
            return False
        types = types_of(named)
        types |= {"number", "integer"} if "integer" in types else set()
        if not types or types & seen:
            return False
        seen |= types
    return True
