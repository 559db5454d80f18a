r"""Detection of guides that XGrammar misreads.

Texts of its parsers end at U+0000, and an escape of that character takes in the digits behind it.

XGrammar (0.1.21 to 0.1.32) prints U+0001 to U+001F, where C has no letter for it, and U+007F to
U+00FF as ``\x`` with two hexadecimal digits and reads
the result again, with any digits that follow: ``Größe`` becomes ``Grö`` and U+0DFE. Affected are
names and values in JSON schemas, brackets in regular expressions, whole regular expressions in
0.1.21, and EBNF grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trtllm_truss.requests import Guide

_PAIR = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f-\xff][0-9A-Fa-f]")
# An unclosed bracket matches up to the end of the text: no match fails, so the search is linear.
_BRACKETS = re.compile(r"\[(?:\\.?|[^\]\\])*(?:\]|\Z)", re.DOTALL)

# Any escape, so that the backslash of an escaped backslash begins none.
# XGrammar reads a range from U+0000 right: `[^\x00-\x1f]` is usual.
_ESCAPE = re.compile(
    r"\\(?:(?P<nul>(?:x00+(?!0)|x0(?![0-9A-Fa-f])|u0{4}|u\{0+\}|U0{8}|0)(?!-))|.)", re.DOTALL
)


def find_nul(guide: Guide) -> bool:
    """Return True if a guide has U+0000 where XGrammar misreads it.

    Raises:
        ValueError: a JSON schema is not JSON.
    """
    if guide.language != "json_schema":
        return _has_nul(guide.text)
    schema = json.loads(guide.text)
    return any(map(_has_nul, _values_of("pattern", schema))) or any(
        "\0" in name for names in _values_of("properties", schema) for name in names
    )


def _has_nul(text: Any) -> bool:
    return isinstance(text, str) and (
        "\0" in text or any(found["nul"] for found in _ESCAPE.finditer(text))
    )


def _values_of(keyword: str, schema: Any) -> Iterator[Any]:
    """Yield the texts or objects of a keyword anywhere in a JSON schema."""
    if isinstance(schema, list):
        for item in schema:
            yield from _values_of(keyword, item)
    elif isinstance(schema, dict):
        if isinstance(value := schema.get(keyword), str | dict):
            yield value
        for item in schema.values():
            yield from _values_of(keyword, item)


def find_misread_pair(guide: Guide, *, brackets_only: bool) -> str | None:
    """Find two neighbouring characters that XGrammar reads as one.

    Args:
        guide: the guide.
        brackets_only: check regular expressions inside of brackets only.

    Returns:
        The first such pair, or None.

    Raises:
        ValueError: a JSON schema is not JSON.
    """
    places: Iterator[str]
    if guide.language == "json_schema":
        places = _literals(json.loads(guide.text))
    elif guide.language == "regex" and brackets_only:
        places = (match.group() for match in _BRACKETS.finditer(guide.text))
    else:
        places = iter([guide.text])
    found = (_PAIR.search(place) for place in places)
    return next((match.group() for match in found if match), None)


def _literals(schema: Any) -> Iterator[str]:
    """Yield the property names, constants and enumerations of a JSON schema."""
    if isinstance(schema, list):
        for item in schema:
            yield from _literals(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("const", "enum"):
                yield json.dumps(value, ensure_ascii=False)
            elif key == "properties" and isinstance(value, dict):
                yield from value
                yield from _literals(list(value.values()))
            else:
                yield from _literals(value)
