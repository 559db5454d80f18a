"""Grammars of the numbers between the bounds of a JSON schema.

XGrammar's own rules (``_generate_float_regex`` and ``_generate_range_regex`` of its Python
bindings, 0.1.32) are wrong: `minimum: 0, maximum: 1` allows 1.5, `exclusiveMinimum: 0` allows 0 and
forbids 0.5, `integer` with `exclusiveMinimum: -5` forbids -2, and `maximum: 1e30` allows this
number alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from trtllm_truss.guides.guide import GuideFault

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")

_MAX_DIGITS = 20
_TOO_LARGE = Decimal(10**_MAX_DIGITS)
_FREE_DIGITS = 6  # of a fraction, if no bound decides: as in XGrammar's own rules
_ANY = f"[0-9]{{1,{_FREE_DIGITS}}}"
_ABOVE_ZERO = f"[0]{{0,{_FREE_DIGITS - 1}}} [1-9] [0-9]{{0,{_FREE_DIGITS - 1}}}"
_SHOWN_CHARACTERS = 100

_Digits: TypeAlias = tuple[str, bool]
"""Digits of a bound's fraction, and whether the bound is excluded."""


class _Bound(NamedTuple):
    value: Decimal
    is_open: bool


def write_number(schema: Mapping[str, Any], *, is_integer: bool) -> str:
    """Return the grammar of a number between the bounds of a schema.

    Raises:
        GuideFault: a bound is not a number, or no number is between the bounds.
    """
    lower, upper = _Bound(-_TOO_LARGE, True), _Bound(_TOO_LARGE, True)
    for name in (*LOWER, *UPPER):
        value = schema.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GuideFault(f"its {name} is {str(value)[:_SHOWN_CHARACTERS]}; send a number.")
        if not isfinite(value):
            raise GuideFault("it has a number that cannot be represented; use a smaller one.")
        if name not in schema:
            continue
        bound = _Bound(Decimal(str(value)), name.startswith("exclusive"))
        if name in LOWER:
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
        bounds = ", ".join(f"{name} {schema[name]}" for name in (*LOWER, *UPPER) if name in schema)
        raise GuideFault(
            f"no {'integer' if is_integer else 'number'} of at most {_MAX_DIGITS} digits fits "
            f"{bounds[:_SHOWN_CHARACTERS]}; widen the bounds."
        )
    return " | ".join(found)


def _minus(bound: _Bound) -> _Bound:
    return _Bound(-bound.value, bound.is_open)


def _rounded(bound: _Bound, rounding: str, is_integer: bool) -> _Bound:
    """Round a bound inwards, to an included integer or to `_MAX_DIGITS` of a fraction."""
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
    """Yield the grammars of unsigned numbers between two bounds, none below 0."""
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
    """Return the integer part and the digits of the fraction, without trailing zeros."""
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
    """Return the grammar of the digits between two texts of equal length."""
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
    """Return whether a fraction may end here, and the grammar of its possible next digits.

    Args:
        lower: remaining digits of the lower bound, and whether it is excluded; None if the digits
            so far are above it.
        upper: likewise for the upper bound.
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
    """Return the rest of the bounds after a digit; None if the digit is outside of them."""
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
