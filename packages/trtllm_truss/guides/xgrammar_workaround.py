r"""Detection of guides that XGrammar misreads.

XGrammar (0.1.21 to 0.1.32) prints U+0080 to U+00FF as ``\x`` with two hexadecimal digits and reads
the result again, with any digits that follow: ``Größe`` becomes ``Grö`` and U+0DFE. Affected are
names and values in JSON schemas, brackets in regular expressions, whole regular expressions in
0.1.21, and EBNF grammars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trtllm_truss.guides.guide import Guide

_PAIR = re.compile("[\x80-\xff][0-9A-Fa-f]")
# An unclosed bracket matches up to the end of the text: no match fails, so the search is linear.
_BRACKETS = re.compile(r"\[(?:\\.?|[^\]\\])*(?:\]|\Z)", re.DOTALL)


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
