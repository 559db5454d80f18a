"""Base class of strict pydantic models, and messages for their errors.

A message gives the field, its value and the violated rule, in the same words everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict

SHOWN_CHARACTERS = 60
"""Maximum length of a caller's name or value in a message."""

_ENCODER = json.JSONEncoder(default=str, check_circular=False)  # the check keeps the value alive

WORDS_TOO_LONG = "words_too_long"
"""Our own kind of error, for lists of texts."""

_MUST_BE = {
    "string_type": "it must be a string",
    "string_unicode": "it must be valid Unicode, without lone surrogates",
    "string_too_short": "it must not be empty",
    "string_pattern_mismatch": "it must match {pattern}",
    "string_too_long": "it must have at most {max_length} characters",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "int_parsing_size": "it is out of range",
    "float_type": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_type": "it must be true or false",
    "list_type": "it must be a list",
    "tuple_type": "it must be a list",
    "dict_type": "it must be an object",
    "model_type": "it must be an object",
    "text_or_object": "it must be a string or an object",
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be greater than {gt}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be less than {lt}",
    "too_short": "it must not be empty",
    "too_long": "it must have at most {max_length} items",
    WORDS_TOO_LONG: "its items must have at most {most} characters in all",
}


class Strict(BaseModel):
    """Base class of models that refuse unknown keys and values of another type.

    Built at first use, because building all of them takes 50 ms of a start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def broken_rule(finding: Mapping[str, Any], name: str) -> str:
    """Format an item of `ValidationError.errors()`: "NAME is VALUE; it must be RULE"."""
    rule = _MUST_BE.get(finding["type"])
    value, message = shown(finding["input"]), str(finding["msg"])
    if rule is None:
        return f"{name} is {value}: {message[:1].lower()}{message[1:]}"
    return f"{name} is {value}; {rule.format(**finding.get('ctx') or {})}"


def dotted_path(location: Iterable[int | str]) -> str:
    """Join the location of an error: ``messages[0].content``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


_MAX_TYPO_EDITS = 2


def did_you_mean(name: str, known: Iterable[str], refused: Iterable[str] = ()) -> str | None:
    """Return the known name closest to an unknown one, if any is close.

    Args:
        refused: names that are known but not accepted; suggested for near typos only.
    """
    name = name[:SHOWN_CHARACTERS]
    near = [other for other in refused if _edits(name, other) <= _MAX_TYPO_EDITS]
    close = get_close_matches(name, sorted({*known, *near}), n=1, cutoff=0.6)
    return close[0] if close else None


def _edits(one: str, other: str) -> int:
    """Count the insertions, deletions and replacements between two texts.

    Large counts are inexact.
    """
    if abs(len(one) - len(other)) > _MAX_TYPO_EDITS:
        return _MAX_TYPO_EDITS + 1
    row: list[int] = [*range(len(other) + 1)]
    for place, letter in enumerate(one, 1):
        above, row[0] = row[0], place
        for at, its in enumerate(other, 1):
            change = above + (letter != its)
            above = row[at]
            row[at] = min(change, row[at] + 1, row[at - 1] + 1)
    return row[-1]


def shown(value: Any) -> str:
    """Format a caller's value for a message: JSON, truncated."""
    if isinstance(value, str):
        value = value[:SHOWN_CHARACTERS]
    text = ""
    is_plain = not isinstance(value, (dict, list, tuple))
    # Lazily, because a container can be megabytes. The encoder is left to the garbage collector.
    for part in (_ENCODER.encode(value),) if is_plain else _ENCODER.iterencode(value):
        text += part
        if len(text) > SHOWN_CHARACTERS:
            break
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def shown_name(name: str) -> str:
    """Format a caller's field name for a message."""
    if len(name) > SHOWN_CHARACTERS:
        return shown(name)
    plain = name.replace("_", "").replace(".", "").isalnum() and name.isascii()
    return name if plain else shown(name)


_CREDENTIAL_NAME = re.compile(r"token$|secret|password|credential|_key$|authorization")
_CREDENTIAL = re.compile(
    r"\b(?:(?:hf_|ghp_|AKIA)[a-z0-9]{8}|(?:sk-|nvapi-)[\w-]{8})|bearer\s|://[^/@\s]+@",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"\$\{?\w+\}?")


def names_credential(name: str) -> bool:
    """Return True for the name of an option or variable that contains a token, key or password."""
    words = name.lower().replace("-", "_").split()
    return any(_CREDENTIAL_NAME.search(word) for word in words)


def holds_credential(text: str) -> bool:
    """Return True for a text in the form of a token, or with a password in a URL."""
    return bool(_CREDENTIAL.search(text)) and not _REFERENCE.fullmatch(text)


def is_unicode(text: str) -> bool:
    """Return False for a string with a lone surrogate, which JSON allows."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
