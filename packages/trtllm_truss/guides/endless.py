"""Rules of a guide that no text can complete, such as `root ::= "a" root`.

XGrammar compiles them, and the engine then writes until `max_tokens`, or tokens at random where
none is allowed. A rule ends if one of its alternatives refers only to rules that end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from trtllm_truss.requests import Guide

# A rule's name, or whether all are needed of which parts; all of none always ends.
_Part: TypeAlias = "str | tuple[bool, list[_Part]]"
_ANY, _ALL = False, True
_ENDS: _Part = (_ALL, [])

_EBNF = re.compile(
    r'\#[^\n]*|(?P<literal>"(?:\\.?|[^"\\])*(?:"|\Z)|\[(?:\\.?|[^\]\\])*(?:\]|\Z))'
    r"|(?P<begin>[A-Za-z_][\w.-]*)\s*::=|(?P<name>[A-Za-z_][\w.-]*)"
    r"|(?P<optional>[*?]|\{\s*0*\s*[,}][^}]*\}?)|(?P<sign>[()|])",
    re.DOTALL,
)


def find_endless(guide: Guide) -> str | None:
    """Find a rule in use that never ends.

    Returns:
        Its name, or for a JSON schema its reference; None if every rule ends.

    Raises:
        ValueError: a JSON schema is not JSON.
    """
    match guide.language:
        case "json_schema":
            rules, root = _read_schema(json.loads(guide.text)), "#"
        case "ebnf_grammar":
            rules, root = _read_grammar(guide.text), "root"
        case _:
            return None
    if root not in rules:
        return None
    used = _used(rules, root)
    ending: set[str] = {name for name in _names(rules, used) if name not in rules}
    before = -1
    while len(ending) != before:
        before = len(ending)
        # Deep rules were found last and mostly end first.
        ending.update(name for name in reversed(used) if _ends(rules[name], ending))
    return next((name for name in used if name not in ending), None)


def _used(rules: Mapping[str, _Part], root: str) -> list[str]:
    used = {root: None}
    waiting = [root]
    while waiting:
        for name in _names(rules, [waiting.pop()]):
            if name in rules and name not in used:
                used[name] = None
                waiting.append(name)
    return [*used]


def _names(rules: Mapping[str, _Part], of: list[str]) -> Iterator[str]:
    parts = [rules[name] for name in of]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            yield part
        else:
            parts += part[1]


def _ends(part: _Part, ending: set[str]) -> bool:
    if isinstance(part, str):
        return part in ending
    needs_all, parts = part
    return (all if needs_all else any)(_ends(inner, ending) for inner in parts)


def _read_grammar(text: str) -> dict[str, _Part]:
    """Read rules of XGrammar's EBNF; unknown signs count as text, which ends."""
    rules: dict[str, _Part] = {}
    groups = [_Group()]  # the open ones
    for token in _EBNF.finditer(text):
        sequence = groups[-1].sequence
        if token["begin"]:
            groups = [_Group()]
            rules[token["begin"]] = groups[0].part
        elif token["name"]:
            sequence.append(token["name"])
        elif token["literal"]:
            sequence.append(_ENDS)
        elif token["optional"] and sequence:
            sequence.append(_optional(sequence.pop()))
        elif token["sign"] == "(":
            groups.append(_Group())
            sequence.append(groups[-1].part)
        elif token["sign"] == "|":
            groups[-1].begin_alternative()
        elif token["sign"] and len(groups) > 1:
            groups.pop()
    return rules


class _Group:
    """Alternatives between brackets, or of a rule; `part` grows with them."""

    def __init__(self) -> None:
        self._alternatives: list[_Part] = []
        self.part: _Part = (_ANY, self._alternatives)
        self.begin_alternative()

    def begin_alternative(self) -> None:
        self.sequence: list[_Part] = []
        self._alternatives.append((_ALL, self.sequence))


def _read_schema(schema: Any) -> dict[str, _Part]:
    rules: dict[str, _Part] = {}
    waiting = ["#"]
    while waiting:
        pointer = waiting.pop()
        if pointer in rules:
            continue
        try:
            rules[pointer] = _value(_resolved(schema, pointer))
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # XGrammar refuses the reference
        waiting += _names(rules, [pointer])
    return rules


def _resolved(schema: Any, pointer: str) -> Any:
    for key in pointer[1:].split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        schema = schema[int(key)] if isinstance(schema, list) else schema[key]
    return schema


def _value(schema: Any) -> _Part:
    """Describe what a value of a schema needs, as XGrammar reads it: one keyword wins."""
    if not isinstance(schema, dict):
        return _ENDS
    if isinstance(pointer := schema.get("$ref"), str):
        return pointer if pointer.startswith("#") else _ENDS
    if "const" in schema:
        return _ENDS
    if "enum" in schema:
        return _ANY, [_ENDS] if schema["enum"] else []
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(keyword), list):
            if keyword == "allOf" and len(choices) > 1:
                return _ENDS  # XGrammar allows any value
            return _ANY, [_value(choice) for choice in choices]
    return _typed(schema)


def _typed(schema: Mapping[str, Any]) -> _Part:
    types = schema.get("type")
    containers = (_object(schema), _array(schema))
    if isinstance(types, list) and types:
        names = {"object": containers[0], "array": containers[1]}
        return _ANY, [names.get(name, _ENDS) if isinstance(name, str) else _ENDS for name in types]
    if types == "object" or (types is None and _is_object(schema)):
        return containers[0]
    if types == "array" or (types is None and _is_array(schema)):
        return containers[1]
    return _ENDS


def _is_object(schema: Mapping[str, Any]) -> bool:
    return not schema.keys().isdisjoint(
        ("properties", "additionalProperties", "patternProperties", "unevaluatedProperties")
    )


def _is_array(schema: Mapping[str, Any]) -> bool:
    return not schema.keys().isdisjoint(("items", "prefixItems", "unevaluatedItems"))


def _object(schema: Mapping[str, Any]) -> _Part:
    properties, required = schema.get("properties"), schema.get("required")
    parts = []
    if isinstance(properties, dict):
        names = required if isinstance(required, list) else []
        for name, value in properties.items():
            parts.append(_value(value) if name in names else _optional(_value(value)))
    parts.append(_optional(_value(schema.get("additionalProperties"))))
    return _ALL, parts


def _array(schema: Mapping[str, Any]) -> _Part:
    first = schema.get("prefixItems")
    parts = [_value(item) for item in first] if isinstance(first, list) else []
    least, rest = schema.get("minItems"), _value(schema.get("items"))
    needs_rest = isinstance(least, int) and least > len(parts)
    return _ALL, [*parts, rest if needs_rest else _optional(rest)]


def _optional(part: _Part) -> _Part:
    return _ANY, [_ENDS, part]
