r"""Guides that XGrammar takes to say something else than they do.

It writes characters from U+0080 to U+00FF as ``\x`` with two hexadecimal digits into grammars that
it reads again, and then takes digits that follow for more of the same: ``Größe`` becomes ``Grö``
and U+0DFE (as of OpenVINO GenAI 2026.4). That concerns names and values in JSON schemas, brackets
in regular expressions, and all of an EBNF grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_PAIR = re.compile("[\x80-\xff][0-9A-Fa-f]")
_BRACKETS = re.compile(r"\[(?:\\.|[^\]\\])*\]", re.DOTALL)


def find_misread_pair(language: str, text: str) -> str | None:
    """Find two characters side by side of which XGrammar makes one.

    Args:
        language: json_schema, regex or grammar.
        text: a guide in that language; a JSON schema must be valid JSON.
    """
    places: Iterator[str]
    if language == "json_schema":
        places = _literals(json.loads(text))
    elif language == "regex":
        places = iter(_BRACKETS.findall(text))
    else:
        places = iter([text])
    found = (_PAIR.search(place) for place in places)
    return next((match.group() for match in found if match), None)


def _literals(schema: Any) -> Iterator[str]:
    """Names and values that a JSON schema spells out."""
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
