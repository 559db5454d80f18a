"""pydantic models of settings and request bodies, and their errors as sentences.

A sentence names the field, its value and the rule that it breaks, in the same words for both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict

SHOWN_CHARACTERS = 60
"""Characters of a foreign name or value in a message."""

_ENCODER = json.JSONEncoder(default=str)

_MUST_BE = {
    "string_type": "it must be a text",
    "string_unicode": "it must be a text of valid Unicode, without lone surrogates",
    "string_too_short": "it must not be empty",
    "string_pattern_mismatch": "it must match {pattern}",
    "string_too_long": "it must have at most {max_length} characters",
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
}


class Strict(BaseModel):
    """A model that refuses unknown keys and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def broken_rule(finding: Mapping[str, Any], name: str) -> str:
    """Describe a finding of pydantic: "NAME is VALUE; it must be RULE", without a full stop.

    Args:
        finding: an item of `ValidationError.errors()`.
        name: the field as its author writes it.
    """
    rule = _MUST_BE.get(finding["type"])
    value, message = shown(finding["input"]), str(finding["msg"])
    if rule is None:
        return f"{name} is {value}: {message[:1].lower()}{message[1:]}"
    return f"{name} is {value}; {rule.format(**finding.get('ctx') or {})}"


def dotted_path(location: Iterable[int | str]) -> str:
    """Join the location of a finding: ``messages[0].content``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest to an unknown one, if any is close."""
    close = get_close_matches(name[:SHOWN_CHARACTERS], sorted(known), n=1, cutoff=0.6)
    return close[0] if close else None


def shown(value: Any) -> str:
    """Return a foreign value as it may stand in a message: JSON, cut short."""
    if isinstance(value, str):
        value = value[:SHOWN_CHARACTERS]
    text = ""
    for part in _ENCODER.iterencode(value):  # lazily: the value can be megabytes
        text += part
        if len(text) > SHOWN_CHARACTERS:
            break
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def shown_name(name: str) -> str:
    """Return a foreign field name as it may stand in a message."""
    if len(name) > SHOWN_CHARACTERS:
        return shown(name)
    plain = name.replace("_", "").replace(".", "").isalnum() and name.isascii()
    return name if plain else shown(name)


def is_unicode(text: str) -> bool:
    """Return False for a string with a lone surrogate, which JSON allows."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
