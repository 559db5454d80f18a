"""pydantic's findings become one sentence: the field, its value, and what it must be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sized
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from trtllm_truss.errors import InvalidRequest

_SHOWN_CHARACTERS = 60

_ENCODER = json.JSONEncoder(default=str)

_MUST_BE = {
    "string_type": "it must be a text",
    "string_unicode": "it must be a text of valid Unicode, without lone surrogates",
    "string_too_short": "it must not be empty",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "int_parsing_size": "it must be a whole number of usual size",
    "float_type": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_type": "it must be true or false",
    "list_type": "it must be a list",
    "tuple_type": "it must be a list",
    "dict_type": "it must be an object",
    "model_type": "it must be an object",
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be greater than {gt}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be less than {lt}",
    "too_short": "it must not be empty",
    "too_long": "it must have at most {max_length} items",
    "string_too_long": "it must have at most {max_length} characters",
}


def invalid_request(error: ValidationError, known: Iterable[str]) -> InvalidRequest:
    """The first finding of a failed validation as the error that the caller reads.

    Args:
        error: what pydantic found in the body.
        known: the names of the fields that exist, for suggestions.
    """
    finding: dict[str, Any] = dict(error.errors(include_url=False)[0])
    location = [str(part)[:_SHOWN_CHARACTERS] for part in finding["loc"]]
    field, path = location[0] if location else "", _path(location)
    if finding["type"] == "extra_forbidden":
        return unknown_field(path, known)
    if finding["type"] == "missing":
        return InvalidRequest(f"{path} is missing.", param=path)
    rule = _MUST_BE.get(finding["type"])
    context = finding.get("ctx") or {}
    must = rule.format(**context) if rule else str(finding["msg"])
    return InvalidRequest(f"{path} is {shown(finding['input'])}; {must}.", param=field or None)


def check_length(name: str, items: Sized, most: int, *, param: str, unit: str = "items") -> None:
    """Refuse a list or text that is too long.

    Raises:
        InvalidRequest: it has more than `most` of `unit`.
    """
    if len(items) > most:
        raise InvalidRequest(
            f"{name} has {len(items)} {unit}; it must have at most {most} {unit}.",
            param=param,
        )


def unknown_field(name: str, known: Iterable[str]) -> InvalidRequest:
    """Build the error that refuses a field by name."""
    names, brief = sorted(known), name[:_SHOWN_CHARACTERS]
    close = get_close_matches(brief, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(names)}."
    return InvalidRequest(f"{shown_name(name)} is not a field of this request; {hint}", param=brief)


def shown(value: Any) -> str:
    """A value of the caller's as it may stand in a message: JSON, cut short."""
    if isinstance(value, str):
        value = value[:_SHOWN_CHARACTERS]
    text = ""
    for part in _ENCODER.iterencode(value):  # lazily: the value can be megabytes
        text += part
        if len(text) > _SHOWN_CHARACTERS:
            break
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def shown_name(name: str) -> str:
    """A field name of the caller's as it may stand in a message."""
    if len(name) > _SHOWN_CHARACTERS:
        return shown(name)
    plain = name.replace("_", "").replace(".", "").isalnum() and name.isascii()
    return name if plain else shown(name)


def _path(location: list[str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if part.isdigit() else f".{part}" if path else part
    return path
