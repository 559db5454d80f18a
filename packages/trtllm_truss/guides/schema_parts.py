"""The parts of JSON schemas: keywords, references, and merged schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any
from urllib.parse import unquote

from trtllm_truss.guides.guide import GuideFault
from trtllm_truss.guides.number_ranges import LOWER, UPPER

Schema = Mapping[str, Any]

_SUBSCHEMAS = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
WITHOUT_EFFECT = (
    *("not", "if", "multipleOf", "uniqueItems", "contains", "dependentRequired"),
    *("dependentSchemas", "dependencies"),
)
_NAMES = ("propertyNames", "patternProperties", "properties", "required")
OF_OBJECTS = (*_NAMES, "additionalProperties", "unevaluatedProperties")
COUNTS_OF_OBJECTS = ("minProperties", "maxProperties")
_OF_ARRAYS = ("items", "prefixItems", "additionalItems", "unevaluatedItems")
COUNTS_OF_ARRAYS = ("minItems", "maxItems")
OF_STRINGS = ("pattern", "format", "minLength", "maxLength")
OF_NUMBERS = (*LOWER, *UPPER)
KEYWORDS = {
    "object": (*OF_OBJECTS, *COUNTS_OF_OBJECTS),
    "array": (*_OF_ARRAYS, *COUNTS_OF_ARRAYS),
    "string": OF_STRINGS,
    "number": OF_NUMBERS,
}
OF_VALUES = ("type", *(keyword for keywords in KEYWORDS.values() for keyword in keywords))
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
CHOICES = ("$ref", "anyOf", "oneOf", "allOf")
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SHOWN_CHARACTERS = 100


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def find_foreign_reference(schema: str) -> str | None:
    """Find an unsupported reference: to another document, or to an anchor.

    Raises:
        ValueError: the schema is not JSON.
    """
    places: list[Any] = [json.loads(schema)]
    for part in places:
        if not isinstance(part, dict):
            continue
        for name in _REFERENCES:
            target = part.get(name)
            if isinstance(target, str) and not (
                name == "$ref" and (target == "#" or target.startswith("#/"))
            ):
                return f"{name} {target[:_SHOWN_CHARACTERS]!r}"
        for name, value in part.items():
            if name in _SUBSCHEMAS:
                places.append(value)
            elif name in _SUBSCHEMA_LISTS and isinstance(value, list):
                places += value
            elif name in _SUBSCHEMA_MAPS and isinstance(value, dict):
                places += value.values()
    return None


class References:
    """The references within a schema.

    Args:
        root: the schema.
    """

    def __init__(self, root: Any) -> None:
        self._root = root

    def resolve(self, pointer: Any) -> Any:
        """Return the part that a JSON pointer in a fragment refers to (RFC 6901).

        Raises:
            GuideFault: it refers to none.
        """
        part = self._root
        try:
            for key in unquote(pointer.removeprefix("#")).split("/")[1:]:
                key = key.replace("~1", "/").replace("~0", "~")
                part = part[int(key)] if isinstance(part, list) else part[key]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise GuideFault(
                f"its $ref {shown(pointer)} refers to no part of it; correct the reference."
            ) from None
        return part

    def merged(self, schemas: Sequence[Any], unevaluated: Schema | None = None) -> Any:
        """Return one schema for values that fit all; None if these keywords cannot express it.

        Args:
            unevaluated: keywords for members that none of the schemas names.
        """
        whole: Any = True
        for schema in schemas:
            for _ in range(_SHOWN_CHARACTERS):  # references to references
                only_refers = isinstance(schema, Mapping) and "$ref" in schema
                if not only_refers or whole is True:
                    break
                beside = {key: value for key, value in schema.items() if key != "$ref"}
                target = self.resolve(schema["$ref"])
                schema = _merge(beside, target) if beside else target
            whole = _merge(whole, schema)
            if whole is None:
                return None
        if not unevaluated or whole is False:
            return whole
        named = {} if whole is True else whole
        return None if not named.keys().isdisjoint(unevaluated) else {**unevaluated, **named}

    def are_disjoint(self, schemas: Sequence[Any]) -> bool:
        every = [self.followed(each) for each in schemas]
        return all(
            self._differ(one, other)
            for place, one in enumerate(every)
            for other in every[place + 1 :]
        )

    def followed(self, schema: Any) -> Any:
        """Return the target of a reference, following a hundred references at most."""
        for _ in range(_SHOWN_CHARACTERS):
            if not (isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str)):
                break
            schema = self.resolve(schema["$ref"])
        return schema

    def _differ(self, one: Any, other: Any, level: int = 0) -> bool:
        """Return True if certainly no value fits both schemas."""
        one, other = self.followed(one), self.followed(other)
        if one is False or other is False:
            return True
        if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
            return False
        values, others = values_of(one), values_of(other)
        if values is not None and others is not None:
            return not any(are_equal(value, each) for value in values for each in others)
        types, other_types = types_of(one), types_of(other)
        if types and other_types:
            shared = types & other_types
            if not shared:
                return True
            if shared == {"object"} and level < 3:
                return self._members_differ(one, other, level)
        return False

    def _members_differ(self, one: Schema, other: Schema, level: int) -> bool:
        members, others = one.get("properties"), other.get("properties")
        if not (isinstance(members, Mapping) and isinstance(others, Mapping)):
            return False
        required = {*names_of(one, "required")} & {*names_of(other, "required")}
        if any(
            name in members
            and name in others
            and self._differ(members[name], others[name], level + 1)
            for name in required
        ):
            return True
        # A closed object does not have a member that the other one requires.
        return any(
            [*names_of(b, "required")] and not {*names_of(b, "required")} <= {*known}
            for a, known, b in ((one, members, other), (other, others, one))
            if a.get("additionalProperties") is False and "patternProperties" not in a
        )


def shown(value: Any) -> str:
    """Return a value in Python's notation, shortened for an error."""
    return repr(value)[:_SHOWN_CHARACTERS]


def mapping(schema: Schema, keyword: str) -> Mapping[str, Any]:
    found = schema.get(keyword, {})
    if not isinstance(found, Mapping):
        raise GuideFault(f"its {keyword} is {shown(found)}; send an object.")
    return found


def names_of(schema: Schema, keyword: str) -> list[str]:
    found = schema.get(keyword, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise GuideFault(f"its {keyword} is {shown(found)}; send a list of names.")
    return list(dict.fromkeys(found))


def counts_of(schema: Schema, least_name: str, most_name: str) -> tuple[int, int | None]:
    found: list[int | None] = []
    for name in (least_name, most_name):
        value = schema.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise GuideFault(f"its {name} is {shown(value)}; send an integer.")
        if value is not None and value < 0:
            raise GuideFault(f"its {name} is {shown(value)}; send 0 or more.")
        found.append(value)
    return found[0] or 0, found[1]


def patterns_of(pattern: Any) -> tuple[Any, ...]:
    return pattern if isinstance(pattern, tuple) else (pattern,)  # several of merged schemas


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "number", float: "number", dict: "object", list: "array"}
    return kinds.get(type(value), "null")


def types_of_value(value: Any) -> set[str]:
    kind = kind_of(value)
    if kind != "number":
        return {kind}
    return {"number", "integer"} if isfinite(value) and value == int(value) else {"number"}


def types_of(schema: Schema) -> set[str]:
    """Return the types that a schema allows, `integer` besides `number`; empty if it allows all."""
    if (values := values_of(schema)) is not None:
        return {each for value in values for each in types_of_value(value)}
    types = schema.get("type")
    found = {each for each in (types if isinstance(types, list) else [types]) if each in _TYPES}
    return found | {"integer"} if "number" in found else found


def values_of(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def conditions(schema: Any) -> str:
    """Return a schema's conditions on values, as JSON that is equal for equal conditions."""
    if schema is True:
        return "{}"
    if isinstance(schema, Mapping):
        schema = {key: schema[key] for key in schema if not _is_annotation(key)}
    return json.dumps(schema, sort_keys=True)


def _is_annotation(key: str) -> bool:
    return key not in (*OF_VALUES, *CHOICES, *WITHOUT_EFFECT, "const", "enum")


def are_equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _merge(one: Any, other: Any) -> Any:
    """Return a schema for values that fit both; None if these keywords cannot express it."""
    for first, second in ((one, other), (other, one)):
        if first is True or first == {}:
            return second
        if first is False:
            return False
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return None
    if _depend(one, other) or _depend(other, one):
        return None
    whole = {**one, **other}
    for key in one.keys() & other.keys():
        merged = _merge_keyword(key, one[key], other[key])
        if merged is None:
            return None
        whole[key] = merged
    return whole


def _depend(first: Schema, second: Schema) -> bool:
    """Return True if keywords of the first schema would cover parts of the second."""
    rest = first.get("additionalProperties", first.get("unevaluatedProperties", True))
    adds = not {*mapping(second, "properties")} <= {*mapping(first, "properties")}
    is_closed = rest is not True and (adds or "patternProperties" in second)
    return is_closed or ("prefixItems" in first and "items" in second)


def _merge_keyword(key: str, one: Any, other: Any) -> Any:
    """Return the value of a keyword in two schemas; None if no value expresses both."""
    if are_equal(one, other):
        return one
    numbers = all(isinstance(each, int | float) for each in (one, other))
    if key in (*_LARGER, *_SMALLER):
        return (max if key in _LARGER else min)(one, other) if numbers else None
    if key in _MERGED:
        kind, merge = _MERGED[key]
        return merge(one, other) if isinstance(one, kind) and isinstance(other, kind) else None
    return one if _is_annotation(key) else None


def _merge_types(one: Any, other: Any) -> list[Any]:
    first, second = (each if isinstance(each, list) else [each] for each in (one, other))
    found = [each for each in first if each in second]
    for these, those in ((first, second), (second, first)):
        if "integer" in these and "number" in those and "integer" not in found:
            found.append("integer")
    return found


def _merge_members(one: Schema, other: Schema) -> dict[str, Any]:
    names = (*one, *(each for each in other if each not in one))
    return {
        name: _both(one[name], other[name])
        if name in one and name in other
        else one.get(name, other.get(name))
        for name in names
    }


def _both(one: Any, other: Any) -> dict[str, Any]:
    return {"allOf": [one, other]}


_MERGED: Mapping[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "type": (str | list, _merge_types),
    "required": (list, lambda one, other: [*one, *(e for e in other if e not in one)]),
    "enum": (list, lambda one, other: [e for e in one if any(are_equal(e, o) for o in other)]),
    "pattern": (str | tuple, lambda one, other: (*patterns_of(one), *patterns_of(other))),
    "properties": (Mapping, _merge_members),
    "patternProperties": (Mapping, _merge_members),
    "items": (object, _both),
    "additionalProperties": (object, _both),
    "propertyNames": (object, _both),
}
