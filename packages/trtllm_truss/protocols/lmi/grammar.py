"""TGI's `grammar` parameter."""

from __future__ import annotations

from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.guide_text import bounded, schema_text
from trtllm_truss.requests import Guide, GuideKind
from trtllm_truss.validation import Strict, shown

_KINDS: dict[str, GuideKind] = {
    "json": "json_schema",
    "json_schema": "json_schema",
    "regex": "regex",
}


class Grammar(Strict):
    """A guide: `json` takes a schema, `json_schema` one under `schema`, `regex` a string."""

    type: str
    value: Any


def guide_from(grammar: Grammar | None) -> Guide | None:
    """Convert a grammar to a guide.

    Raises:
        InvalidRequest: the type is unknown, or the value does not fit it.
    """
    if grammar is None:
        return None
    if grammar.type not in _KINDS:
        raise _wrong("type", grammar.type, f"one of {', '.join(_KINDS)}")
    kind, value = _KINDS[grammar.type], grammar.value
    if grammar.type == "json_schema" and isinstance(value, dict):
        value = value.get("schema", value)
    if isinstance(value, dict) and kind == "json_schema":
        return Guide(kind, schema_text(value, "parameters.grammar.value", "grammar"))
    if isinstance(value, str) and value:
        return Guide(kind, bounded(value, "parameters.grammar.value", "grammar"))
    raise _wrong("value", value, "a JSON schema, or the text of a regular expression")


def _wrong(name: str, value: Any, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"parameters.grammar.{name} is {shown(value)}; it must be {wanted}.", param="grammar"
    )
