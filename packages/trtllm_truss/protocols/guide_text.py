"""Guides of bodies, within the limit of their texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import check_length
from trtllm_truss.protocols.json_body import Budget, parse_json_text
from trtllm_truss.protocols.limits import MAX_GUIDE_CHARACTERS
from trtllm_truss.requests import Guide, Language
from trtllm_truss.validation import shown

ANY_OBJECT = json.dumps({"type": "object", "additionalProperties": True})
"""The backend's own `json` also accepts arrays."""

_SEPARATOR, _KEY = len(", "), len('"": ')
"""Characters of JSON around each value and each key. The brackets of a container take the place of
its last separator."""


def schema_guide(value: Any, name: str, param: str, *, as_text: bool = False) -> Guide:
    """Return the guide of a JSON schema.

    Args:
        value: the schema.
        name: its path, for messages.
        param: its field.
        as_text: a schema may be written as a text.

    Raises:
        InvalidRequest: it is not a schema, or too long.
    """
    try:
        if as_text and isinstance(value, str):
            value = parse_json_text(bounded(value, name, param), Budget(f" in {name}", param))
    except ValueError:
        pass
    if not isinstance(value, dict):
        raise wrong(name, value, "a JSON schema", param)
    return Guide("json_schema", schema_text(value, name, param))


def text_guide(language: Language, value: Any, name: str, param: str) -> Guide:
    """Return the guide of a regular expression or a grammar.

    Raises:
        InvalidRequest: it is no text, empty or too long.
    """
    if not isinstance(value, str) or not value:
        raise wrong(name, value, "a text that is not empty", param)
    return Guide(language, bounded(value, name, param))


def wrong(name: str, value: Any, wanted: str, param: str) -> InvalidRequest:
    """Build the error of a malformed guide."""
    return InvalidRequest(f"{name} is {shown(value)}; it must be {wanted}.", param=param)


def bounded(text: str, name: str, param: str) -> str:
    """Return the text of a guide.

    Raises:
        InvalidRequest: it is too long.
    """
    check_length(name, text, MAX_GUIDE_CHARACTERS, param=param, unit="characters")
    return text


def schema_text(schema: Mapping[str, Any], name: str, param: str) -> str:
    """Write a JSON schema.

    Raises:
        InvalidRequest: its text is too long.
    """
    check_size(schema, name, param)
    return bounded(json.dumps(schema, ensure_ascii=False), name, param)


def check_size(value: Any, name: str, param: str) -> None:
    """Refuse a value whose JSON is certainly too long, before anything is copied.

    Raises:
        InvalidRequest: it is.
    """
    left = MAX_GUIDE_CHARACTERS + _SEPARATOR
    stack = [value]
    while stack:
        value = stack.pop()
        left -= _SEPARATOR
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, Mapping):
            left -= sum(map(len, value)) + _KEY * len(value)
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        if _SEPARATOR * len(stack) > left:
            raise InvalidRequest(
                f"{name} is too long; it must have at most {MAX_GUIDE_CHARACTERS} characters.",
                param=param,
            )
