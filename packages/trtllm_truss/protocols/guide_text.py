"""The texts of guides, within their limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import check_length
from trtllm_truss.protocols.limits import MAX_GUIDE_CHARACTERS

_SEPARATOR, _KEY = len(", "), len('"": ')
"""Characters of JSON around each value and each key. The brackets of a container take the place of
its last separator."""


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
