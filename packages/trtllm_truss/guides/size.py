"""Nesting depth of a guide, and its size with all repetitions written out.

Measured in one pass over the text, also where XGrammar is missing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trtllm_truss.requests import Guide

MAX_DEPTH = 100
MAX_PARTS = 100_000
"""Parts of a guide with its repetitions written out: `(ab?){9}` has 18."""

_MEASURED_CHARACTERS = 4096  # a millisecond
_CEILING = 10**9  # keeps the numbers small
# An escape, brackets, a repetition count, or one character.
_REGEX = re.compile(r"\\.?|\[(?:\\.?|[^\]\\])*(?:\]|\Z)|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
# Also a literal or a comment.
_EBNF = re.compile(rf'"(?:\\.?|[^"\\])*(?:"|\Z)|\#[^\n]*|{_REGEX.pattern}', re.DOTALL)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def find_excess(guide: Guide) -> str | None:
    """Compare a guide with `MAX_DEPTH` and `MAX_PARTS`.

    Returns:
        What is exceeded, as in `GuideFault`, or None.

    Raises:
        ValueError: a JSON schema is not JSON.
    """
    depth, parts = _size(guide)
    if depth > MAX_DEPTH:
        return f"it is nested more than {MAX_DEPTH} deep; simplify it."
    if parts > MAX_PARTS:
        return (
            f"with its repetitions written out it has more than {MAX_PARTS} parts; lower their "
            "counts."
        )
    return None


def estimate_work(guide: Guide) -> int:
    """Estimate the work of compiling a guide, in parts; of a long text by its length alone."""
    if len(guide.text) > _MEASURED_CHARACTERS:
        return len(guide.text)
    try:
        return max(len(guide.text), _size(guide)[1])
    except ValueError:
        return len(guide.text)


def _size(guide: Guide) -> tuple[int, int]:
    """Return depth and parts of a guide."""
    if guide.language != "json_schema":
        return _measure(guide.text, _REGEX if guide.language == "regex" else _EBNF)
    try:
        return _measure_schema(json.loads(guide.text))
    except RecursionError:
        return MAX_DEPTH + 1, 0


def _measure(text: str, tokens: re.Pattern[str]) -> tuple[int, int]:
    sums, last, depth = [0], 0, 0  # parts of each open group; parts of the last item
    for token in tokens.finditer(text):
        character = token.group()[0]
        if token.group(1) is not None:
            repeated = _product(last, token.group(2) or token.group(1))
            sums[-1] += repeated - last
            last = repeated
        elif character == "(":
            sums.append(0)
            depth = max(depth, len(sums) - 1)
        elif character == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif not character.isspace() and character not in "*+?|":
            last = 1
            sums[-1] += last
    return depth, sum(sums)


def _product(parts: int, count: str) -> int:
    times = int(count) if len(count) < len(str(_CEILING)) else _CEILING
    return min(parts * max(1, times), _CEILING)


def _measure_schema(schema: Any, level: int = 0) -> tuple[int, int]:
    """Measure depth and parts of a JSON schema; parts are its objects and list items."""
    if not isinstance(schema, dict | list) or level > MAX_DEPTH:
        return level, 0
    depth, parts = level, 1
    for value in schema.values() if isinstance(schema, dict) else schema:
        deepest, inner = _measure_schema(value, level + 1)
        depth, parts = max(depth, deepest), parts + inner + isinstance(schema, list)
    if isinstance(schema, dict):
        if isinstance(pattern := schema.get("pattern"), str):
            parts += _measure(pattern, _REGEX)[1]
        counts = [count for name in _COUNTS if type(count := schema.get(name)) is int]
        parts = min(parts * max([1, *counts]), _CEILING)
    return depth, parts
