r"""Limits of guides, the errors of their check, and faults that are visible in their text.

Nesting depth, and size with all repetitions expanded, are measured in one pass over the text, even
without XGrammar.

Rules that no text can complete, such as `root ::= "a" root`, are detected: XGrammar compiles them,
and the engine then generates until `max_tokens`, or random tokens where none is allowed. A rule is
complete if one of its alternatives refers only to complete rules.

XGrammar misreads some guides. Texts of its parsers end at U+0000, and an escape of that character
includes the following digits. XGrammar (0.1.21 to 0.1.32) prints U+0001 to U+001F, where C has no
letter for it, and U+007F to U+00FF as ``\x`` with two hexadecimal digits, and reads the result
again with any digits that follow: ``Größe`` becomes ``Grö`` and U+0DFE. This affects brackets in
regular expressions, whole regular expressions in 0.1.21, and EBNF grammars; those of JSON schemas
are written so that it does not happen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from trtllm_truss.requests import Guide

MAX_CHARACTERS = 1 << 16


class GuideFault(ValueError):
    """The guide is invalid; the message gives the reason and starts with "it"."""


class CheckedGuide(NamedTuple):
    """A guide that the engine may compile.

    Attributes:
        guide: the guide for the engine: for a schema its grammar, except with LLGuidance.
        kept_bytes: memory of the compiled guide.
    """

    guide: Guide
    kept_bytes: int


class TooManyGuides(RuntimeError):
    """The queue of unchecked guides is full."""


class CheckFailed(RuntimeError):
    """The check failed for a reason other than the guide."""


LEAST_BYTES = 1 << 16
"""Minimum charge per guide: smaller allocations vanish in page granularity."""


class KeptGuides:
    """Compiled guides of an engine by digest, up to a memory budget.

    Args:
        budget_bytes: budget for all guides together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._digests: set[bytes] = set()
        self.kept_bytes = 0

    def __contains__(self, guide: Guide) -> bool:
        return guide.digest() in self._digests

    def has_room(self, compiled_bytes: int = 0) -> bool:
        """Return True if a guide of this size, or the smallest, fits into the budget."""
        return self.kept_bytes + max(compiled_bytes, LEAST_BYTES) <= self._budget_bytes

    def add(self, guide: Guide, compiled_bytes: int) -> None:
        """Count a guide once, even beyond the budget."""
        digest = guide.digest()
        if digest not in self._digests:
            self._digests.add(digest)
            self.kept_bytes += max(compiled_bytes, LEAST_BYTES)

    def clear(self) -> None:
        self._digests.clear()
        self.kept_bytes = 0


MAX_DEPTH = 100
MAX_PARTS = 100_000
"""Maximum parts of a guide with its repetitions expanded: `(ab?){9}` has 18."""

_MEASURED_CHARACTERS = 4096  # a millisecond
_CEILING = 10**9  # keeps the numbers small
# An escape, brackets, a repetition count, or one character.
_REGEX_SIZE = re.compile(r"\\.?|\[(?:\\.?|[^\]\\])*(?:\]|\Z)|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)
# Also a literal or a comment.
_EBNF_SIZE = re.compile(rf'"(?:\\.?|[^"\\])*(?:"|\Z)|\#[^\n]*|{_REGEX_SIZE.pattern}', re.DOTALL)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def find_excess(guide: Guide) -> str | None:
    """Compare a guide with `MAX_DEPTH` and `MAX_PARTS`.

    Returns:
        The exceeded limit, as in `GuideFault`, or None.

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
    """Estimate the work to compile a guide, in parts; for a long text, by its length alone."""
    if len(guide.text) > _MEASURED_CHARACTERS:
        return len(guide.text)
    try:
        return max(len(guide.text), _size(guide)[1])
    except ValueError:
        return len(guide.text)


def _size(guide: Guide) -> tuple[int, int]:
    """Return depth and parts of a guide."""
    if guide.language != "json_schema":
        return _measure(guide.text, _REGEX_SIZE if guide.language == "regex" else _EBNF_SIZE)
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
    """Measure depth and parts of a JSON schema; its objects and list items are the parts."""
    if not isinstance(schema, dict | list) or level > MAX_DEPTH:
        return level, 0
    depth, parts = level, 1
    for value in schema.values() if isinstance(schema, dict) else schema:
        deepest, inner = _measure_schema(value, level + 1)
        depth, parts = max(depth, deepest), parts + inner + isinstance(schema, list)
    if isinstance(schema, dict):
        if isinstance(pattern := schema.get("pattern"), str):
            parts += _measure(pattern, _REGEX_SIZE)[1]
        counts = [count for name in _COUNTS if type(count := schema.get(name)) is int]
        parts = min(parts * max([1, *counts]), _CEILING)
    return depth, parts


# A rule's name, or whether all of some parts are needed or one; all of none is complete.
_Part: TypeAlias = "str | tuple[bool, list[_Part]]"
_ANY, _ALL = False, True
_ENDS: _Part = (_ALL, [])

_RULES = re.compile(
    r'\#[^\n]*|(?P<literal>"(?:\\.?|[^"\\])*(?:"|\Z)|\[(?:\\.?|[^\]\\])*(?:\]|\Z))'
    r"|(?P<begin>[A-Za-z_][\w.-]*)\s*::=|(?P<name>[A-Za-z_][\w.-]*)"
    r"|(?P<optional>[*?]|\{\s*0*\s*[,}][^}]*\}?)|(?P<sign>[()|])",
    re.DOTALL,
)


def find_endless(guide: Guide) -> str | None:
    """Find a rule in use that never completes.

    Returns:
        Its name, or for a JSON schema its reference; None if every rule completes.

    Raises:
        ValueError: a JSON schema is not JSON.
    """
    match guide.language:
        case "json_schema":
            rules, root = _read_schema(json.loads(guide.text)), "#"
        case "ebnf_grammar":
            rules, root = _read_grammar(guide.text), "root"
        case _:
            return None
    if root not in rules:
        return None
    used = _used(rules, root)
    ending: set[str] = {name for name in _names(rules, used) if name not in rules}
    before = -1
    while len(ending) != before:
        before = len(ending)
        # Deep rules were found last and mostly complete first.
        ending.update(name for name in reversed(used) if _ends(rules[name], ending))
    return next((name for name in used if name not in ending), None)


def _used(rules: Mapping[str, _Part], root: str) -> list[str]:
    used = {root: None}
    waiting = [root]
    while waiting:
        for name in _names(rules, [waiting.pop()]):
            if name in rules and name not in used:
                used[name] = None
                waiting.append(name)
    return [*used]


def _names(rules: Mapping[str, _Part], of: list[str]) -> Iterator[str]:
    parts = [rules[name] for name in of]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            yield part
        else:
            parts += part[1]


def _ends(part: _Part, ending: set[str]) -> bool:
    if isinstance(part, str):
        return part in ending
    needs_all, parts = part
    return (all if needs_all else any)(_ends(inner, ending) for inner in parts)


def _read_grammar(text: str) -> dict[str, _Part]:
    """Read rules of XGrammar's EBNF; unknown symbols count as text, which is complete."""
    rules: dict[str, _Part] = {}
    groups = [_Group()]  # the open ones
    for token in _RULES.finditer(text):
        sequence = groups[-1].sequence
        if token["begin"]:
            groups = [_Group()]
            rules[token["begin"]] = groups[0].part
        elif token["name"]:
            sequence.append(token["name"])
        elif token["literal"]:
            sequence.append(_ENDS)
        elif token["optional"] and sequence:
            sequence.append(_optional(sequence.pop()))
        elif token["sign"] == "(":
            groups.append(_Group())
            sequence.append(groups[-1].part)
        elif token["sign"] == "|":
            groups[-1].begin_alternative()
        elif token["sign"] and len(groups) > 1:
            groups.pop()
    return rules


class _Group:
    """Alternatives between brackets or of a rule; `part` grows with them."""

    def __init__(self) -> None:
        self._alternatives: list[_Part] = []
        self.part: _Part = (_ANY, self._alternatives)
        self.begin_alternative()

    def begin_alternative(self) -> None:
        self.sequence: list[_Part] = []
        self._alternatives.append((_ALL, self.sequence))


def _read_schema(schema: Any) -> dict[str, _Part]:
    rules: dict[str, _Part] = {}
    waiting = ["#"]
    while waiting:
        pointer = waiting.pop()
        if pointer in rules:
            continue
        try:
            rules[pointer] = _value(_resolved(schema, pointer))
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # XGrammar refuses the reference
        waiting += _names(rules, [pointer])
    return rules


def _resolved(schema: Any, pointer: str) -> Any:
    for key in pointer[1:].split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        schema = schema[int(key)] if isinstance(schema, list) else schema[key]
    return schema


def _value(schema: Any) -> _Part:
    """Describe the parts that a value needs, as XGrammar reads them: one keyword wins."""
    if not isinstance(schema, dict):
        return _ENDS
    if isinstance(pointer := schema.get("$ref"), str):
        return pointer if pointer.startswith("#") else _ENDS
    if "const" in schema:
        return _ENDS
    if "enum" in schema:
        return _ANY, [_ENDS] if schema["enum"] else []
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(keyword), list):
            if keyword == "allOf" and len(choices) > 1:
                return _ENDS  # XGrammar allows any value
            return _ANY, [_value(choice) for choice in choices]
    return _typed(schema)


def _typed(schema: Mapping[str, Any]) -> _Part:
    types = schema.get("type")
    containers = (_object(schema), _array(schema))
    if isinstance(types, list) and types:
        names = {"object": containers[0], "array": containers[1]}
        return _ANY, [names.get(name, _ENDS) if isinstance(name, str) else _ENDS for name in types]
    if types == "object" or (types is None and _is_object(schema)):
        return containers[0]
    if types == "array" or (types is None and _is_array(schema)):
        return containers[1]
    return _ENDS


def _is_object(schema: Mapping[str, Any]) -> bool:
    return not schema.keys().isdisjoint(
        ("properties", "additionalProperties", "patternProperties", "unevaluatedProperties")
    )


def _is_array(schema: Mapping[str, Any]) -> bool:
    return not schema.keys().isdisjoint(("items", "prefixItems", "unevaluatedItems"))


def _object(schema: Mapping[str, Any]) -> _Part:
    properties, required = schema.get("properties"), schema.get("required")
    parts = []
    if isinstance(properties, dict):
        names = required if isinstance(required, list) else []
        for name, value in properties.items():
            parts.append(_value(value) if name in names else _optional(_value(value)))
    parts.append(_optional(_value(schema.get("additionalProperties"))))
    return _ALL, parts


def _array(schema: Mapping[str, Any]) -> _Part:
    first = schema.get("prefixItems")
    parts = [_value(item) for item in first] if isinstance(first, list) else []
    least, rest = schema.get("minItems"), _value(schema.get("items"))
    needs_rest = isinstance(least, int) and least > len(parts)
    return _ALL, [*parts, rest if needs_rest else _optional(rest)]


def _optional(part: _Part) -> _Part:
    return _ANY, [_ENDS, part]


PAIR = re.compile("[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f-\xff][0-9A-Fa-f]")
# An unclosed bracket matches up to the end of the text: no match fails, so the search is linear.
_BRACKETS = re.compile(r"\[(?:\\.?|[^\]\\])*(?:\]|\Z)", re.DOTALL)

# Any escape, so that an escaped backslash does not start one. XGrammar reads a range from U+0000
# correctly: `[^\x00-\x1f]` is common.
_ESCAPE = re.compile(
    r"\\(?:(?P<nul>(?:x00+(?!0)|x0(?![0-9A-Fa-f])|u0{4}|u\{0+\}|U0{8}|0)(?!-))|.)", re.DOTALL
)


def find_nul(guide: Guide) -> bool:
    """Return True if a guide has U+0000 where XGrammar misreads it; never for a JSON schema."""
    if guide.language == "json_schema":  # its grammar has escapes
        return False
    return "\0" in guide.text or any(found["nul"] for found in _ESCAPE.finditer(guide.text))


def find_misread_pair(guide: Guide, *, brackets_only: bool) -> str | None:
    """Find two neighbouring characters that XGrammar reads as one.

    Args:
        brackets_only: only check brackets in regular expressions.

    Returns:
        The first such pair, or None; always None for a JSON schema, whose grammar separates them.
    """
    places: Iterator[str] = iter([guide.text])
    if guide.language == "json_schema":
        return None
    if guide.language == "regex" and brackets_only:
        places = (match.group() for match in _BRACKETS.finditer(guide.text))
    found = (PAIR.search(place) for place in places)
    return next((match.group() for match in found if match), None)
