r"""Parts of a JSON schema that XGrammar drops: bounds of numbers, and keywords without effect.

Its own rules of bounds (``_generate_float_regex`` and ``_generate_range_regex`` of its Python
bindings, 0.1.32) are wrong: `minimum: 0, maximum: 1` allows 1.5, `exclusiveMinimum: 0` allows 0 and
forbids 0.5, `integer` with `exclusiveMinimum: -5` forbids -2, and `maximum: 1e30` allows this
number alone. XGrammar therefore converts a schema that has constants for its bounded numbers, and
the grammar gets their rules in the place of these constants.

Its rule of a string with a length, ``[^"\\\r\n]{0,6}``, allows control characters, which no JSON
parser takes in a string. A grammar of ours forbids them.

Other keywords it drops without an error, and it takes references that it does not follow for any
value. A schema that is `strict` has none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from trtllm_truss.guides.guide import GuideFault

_SUBSCHEMAS = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_BEFORE_TYPE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Keywords beside which XGrammar reads neither type nor bounds."""

_IGNORED = (
    *("allOf", "not", "if", "multipleOf", "uniqueItems", "contains", "dependentRequired"),
    *("dependentSchemas", "dependencies"),
)
_CHOICES = ("$ref", "anyOf", "oneOf", "allOf")
_NAMES = ("patternProperties", "propertyNames")
_OF_VALUES = (
    *(*_LOWER, *_UPPER, *_NAMES, "properties", "required", "additionalProperties", "minProperties"),
    *("maxProperties", "items", "prefixItems", "minItems", "maxItems", "pattern", "minLength"),
    *("maxLength", "format"),
)
"""Keywords without effect beside a choice."""

_MAX_DIGITS = 20
_TOO_LARGE = Decimal(10**_MAX_DIGITS)
_FREE_DIGITS = 6  # of a fraction, where no bound decides: as in XGrammar's own rules
_ANY = f"[0-9]{{1,{_FREE_DIGITS}}}"
_ABOVE_ZERO = f"[0]{{0,{_FREE_DIGITS - 1}}} [1-9] [0-9]{{0,{_FREE_DIGITS - 1}}}"
_FIRST_MARKER = 6 * 10**18  # below 2^63, the limit of XGrammar's integers
_SHOWN_CHARACTERS = 100

_Digits: TypeAlias = tuple[str, bool]
"""Digits of a bound's fraction, and whether the bound is excluded."""


class _Bound(NamedTuple):
    value: Decimal
    is_open: bool


def mark_bounds(schema: str) -> tuple[str, dict[str, str]]:
    """Replace the bounded numbers of a schema by constants.

    Returns:
        The schema, and the grammar of each constant.
    """
    markers: dict[str, str] = {}  # by grammar

    def marker(grammar: str) -> int:
        if grammar not in markers:
            number = _FIRST_MARKER + len(markers)
            while str(number) in schema:
                number += 10**9
            markers[grammar] = str(number)
        return int(markers[grammar])

    whole = [json.loads(schema)]
    for holder, key in reversed(_parts(whole)):
        if isinstance(holder[key], dict):
            holder[key] = _marked(holder[key], marker)
    if not markers:
        return schema, {}
    return json.dumps(whole[0]), {number: grammar for grammar, number in markers.items()}


def find_unkept(schema: str) -> str | None:
    """Find a keyword that XGrammar 0.1.32 reads without effect; None if there is none."""
    parts = (holder[key] for holder, key in _parts([json.loads(schema)]))
    found = (_unkept(part) for part in parts if isinstance(part, dict))
    return next(filter(None, found), None)


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def find_foreign_reference(schema: str) -> str | None:
    """Find a reference that XGrammar takes for any value: to another document, or to an anchor.

    It follows `$ref` to `#` and to `#/…` alone (`JSONSchemaConverter::URIToRule` in
    cpp/json_schema_converter.cc, 0.1.32), and ignores the other keywords.

    Raises:
        ValueError: the schema is not JSON.
    """
    for holder, key in _parts([json.loads(schema)]):
        part = holder[key]
        for name in _REFERENCES if isinstance(part, dict) else ():
            target = part.get(name)
            if isinstance(target, str) and not (
                name == "$ref" and (target == "#" or target.startswith("#/"))
            ):
                return f"{name} {target[:_SHOWN_CHARACTERS]!r}"
    return None


def _parts(whole: list[Any]) -> list[tuple[Any, Any]]:
    """Return the places of all parts of a schema, (container, key) each, the inner ones later."""
    places: list[tuple[Any, Any]] = [(whole, 0)]
    for holder, key in places:
        part = holder[key]
        for name, value in part.items() if isinstance(part, dict) else ():
            if name in _SUBSCHEMAS:
                places.append((part, name))
            elif name in _SUBSCHEMA_LISTS and isinstance(value, list):
                places += ((value, place) for place in range(len(value)))
            elif name in _SUBSCHEMA_MAPS and isinstance(value, dict):
                places += ((value, each) for each in value)
    return places


def _unkept(schema: Mapping[str, Any]) -> str | None:
    for key in _IGNORED:
        value = schema.get(key, False)
        if value is not False and not (
            key == "allOf" and isinstance(value, list) and len(value) < 2
        ):
            return key
    if choice := next((key for key in _CHOICES if key in schema), None):
        beside = next((key for key in _OF_VALUES if key in schema), None)
        return beside and f"{beside} beside {choice}"
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return None
    if name := next((key for key in _NAMES if key in schema), None):
        return f"properties beside {name}"
    for name in schema["required"] if isinstance(schema.get("required"), list) else ():
        if isinstance(name, str) and name not in properties:
            return f"required {name[:_SHOWN_CHARACTERS]!r}, which is no property,"
    return None


def put_bounds(grammar: str, rules: Mapping[str, str]) -> str:
    """Write the rules of `mark_bounds` in the place of their constants."""
    for number, rule in rules.items():
        grammar = grammar.replace(f'"{number}"', f"({rule})")
    return grammar


def forbid_control_characters(grammar: str) -> str:
    """Narrow XGrammar's strings with a length to those of JSON."""
    return grammar.replace(r'[^"\\\r\n]', r"[^\0-\x1f\"\\\r\n]")


def _marked(schema: dict[str, Any], marker: Callable[[str], int]) -> dict[str, Any]:
    has_type = "type" in schema and not any(key in schema for key in _BEFORE_TYPE)
    if not has_type or schema.keys().isdisjoint((*_LOWER, *_UPPER)):
        return schema
    types = schema["type"]
    choices: list[dict[str, Any]] = []
    for name in types if isinstance(types, list) else [types]:
        is_number = name in ("integer", "number")
        grammar = _grammar(schema, is_integer=name == "integer") if is_number else ""
        choices.append({"const": marker(grammar)} if grammar else {"type": name})
    if isinstance(types, list):
        choices = [{"anyOf": [schema | choice for choice in choices]}]
        schema = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return schema | choices[0]


def _grammar(schema: Mapping[str, Any], *, is_integer: bool) -> str:
    """Return the grammar of a number; empty if a bound is none, which XGrammar reports.

    Raises:
        GuideFault: no number is between the bounds.
    """
    lower, upper = _Bound(-_TOO_LARGE, True), _Bound(_TOO_LARGE, True)
    for name in (*_LOWER, *_UPPER):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            return ""
        if name not in schema:
            continue
        bound = _Bound(Decimal(str(value)), name.startswith("exclusive"))
        if name in _LOWER:
            lower = max(lower, bound)
        else:
            upper = min(upper, bound, key=lambda one: (one.value, not one.is_open))
    low, high = _rounded(lower, ROUND_CEILING, is_integer), _rounded(upper, ROUND_FLOOR, is_integer)
    least = max(_Bound(Decimal(is_integer), not is_integer), _minus(high))
    found = [
        *(f'"-" ({one})' for one in _magnitudes(least, _minus(low), is_integer)),
        *_magnitudes(max(_Bound(Decimal(0), False), low), high, is_integer),
    ]
    if not found:
        bounds = ", ".join(
            f"{name} {schema[name]}" for name in (*_LOWER, *_UPPER) if name in schema
        )
        raise GuideFault(
            f"no {'integer' if is_integer else 'number'} of at most {_MAX_DIGITS} digits fits "
            f"{bounds[:_SHOWN_CHARACTERS]}; widen the bounds."
        )
    return " | ".join(found)


def _minus(bound: _Bound) -> _Bound:
    return _Bound(-bound.value, bound.is_open)


def _rounded(bound: _Bound, rounding: str, is_integer: bool) -> _Bound:
    """Round a bound inwards, to an integer that is included or to `_MAX_DIGITS` of a fraction."""
    value, is_open = bound
    if abs(value) > _TOO_LARGE:
        return bound
    if not is_integer:
        places = Decimal(1).scaleb(-_MAX_DIGITS)
        rounded = value.quantize(places, rounding, Context(prec=3 * _MAX_DIGITS))
        return _Bound(rounded, is_open and rounded == value)
    whole = value.to_integral_value(rounding)
    if is_open and whole == value:
        whole += 1 if rounding == ROUND_CEILING else -1
    return _Bound(whole, False)


def _magnitudes(lower: _Bound, upper: _Bound, is_integer: bool) -> Iterator[str]:
    """Yield the grammars of the numbers without a sign between two bounds, none below 0."""
    if lower.value > upper.value:
        return
    (low, low_digits), (high, high_digits) = _split(lower.value), _split(upper.value)
    at_low, at_high = (low_digits, lower.is_open), (high_digits, upper.is_open)
    if is_integer:
        yield from _wholes(low, high)
    elif low == high:
        yield from _with_fraction(low, _fraction(at_low, at_high))
    else:
        yield from _with_fraction(low, _fraction(at_low, None))
        if between := " | ".join(_wholes(low + 1, high - 1)):
            yield f'({between}) ("." {_ANY})?'
        yield from _with_fraction(high, _fraction(None, at_high))


def _split(value: Decimal) -> tuple[int, str]:
    """Return the whole part and the digits of the fraction, without zeros at the end."""
    whole, _, digits = f"{value:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _wholes(low: int, high: int) -> Iterator[str]:
    if low > high:
        return
    whole_lengths = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first, last = 10 ** (length - 1) if length > 1 else 0, 10**length - 1
        if length > 1 and low <= first and last <= high:
            whole_lengths.append(length - 1)
        else:
            yield _same_length(str(max(low, first)), str(min(high, last)))
    if whole_lengths:
        yield f"[1-9] [0-9]{{{whole_lengths[0]},{whole_lengths[-1]}}}"


def _same_length(low: str, high: str) -> str:
    """Return the grammar of the digits between two texts of one length."""
    if low == high:
        return f'"{low}"'
    rest, first, last = len(low) - 1, int(low[0]), int(high[0])
    if first == last:
        return f'"{first}" ({_same_length(low[1:], high[1:])})'
    above, below = low[1:].strip("0"), high[1:].strip("9")
    choices = [f'"{first}" ({_same_length(low[1:], "9" * rest)})'] if above else []
    if (begin := first + bool(above)) <= (end := last - bool(below)):
        choices.append(_digits(begin, end) + (f" [0-9]{{{rest}}}" if rest else ""))
    choices += [f'"{last}" ({_same_length("0" * rest, high[1:])})'] if below else []
    return " | ".join(choices)


def _digits(first: int, last: int) -> str:
    return f"[{first}]" if first == last else f"[{first}-{last}]"


def _with_fraction(whole: int, fraction: tuple[bool, str]) -> Iterator[str]:
    is_optional, digits = fraction
    if digits:
        yield f'"{whole}" ("." ({digits})){"?" if is_optional else ""}'
    elif is_optional:
        yield f'"{whole}"'


def _fraction(lower: _Digits | None, upper: _Digits | None) -> tuple[bool, str]:
    """Return whether a fraction may end here, and the grammar of its next digits, if any may come.

    Args:
        lower: the digits that are left of the lower bound, and whether it is excluded; None if the
            digits before are above it.
        upper: the same for the upper bound.
    """
    lower = None if lower == ("", False) else lower
    if lower is None and upper is None:
        return True, _ANY
    if lower == ("", True) and upper is None:
        return False, _ABOVE_ZERO
    if upper is not None and not upper[0]:
        is_zero = lower is None and not upper[1]
        return is_zero, f"[0]{{1,{_FREE_DIGITS}}}" if is_zero else ""
    choices = []
    for left, group in groupby(range(10), lambda digit: _after(digit, lower, upper)):
        may_end, more = (False, "") if left is None else _fraction(*left)
        if may_end or more:
            digits = [*group]
            rest = f" ({more}){'?' if may_end else ''}" if more else ""
            choices.append(_digits(digits[0], digits[-1]) + rest)
    return lower is None, " | ".join(choices)


def _after(
    digit: int, lower: _Digits | None, upper: _Digits | None
) -> tuple[_Digits | None, _Digits | None] | None:
    """Return what is left of the bounds after a digit; None if it is outside of them."""
    left: list[_Digits | None] = []
    for bound, inwards in ((lower, 1), (upper, -1)):
        if bound is None:
            left.append(None)
            continue
        digits, is_open = bound
        distance = (digit - int(digits[:1] or 0)) * inwards
        if distance < 0:
            return None
        left.append((digits[1:], is_open) if distance == 0 else None)
    return left[0], left[1]
