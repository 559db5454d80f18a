"""The guide of a body: OpenAI's `response_format`, or vLLM's fields.

vLLM: https://docs.vllm.ai/en/latest/features/structured_outputs.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.guide_text import bounded, check_size, schema_text
from trtllm_truss.protocols.json_body import Budget, parse_json_text
from trtllm_truss.protocols.openai.fields import SharedFields
from trtllm_truss.protocols.openai.response_format import (
    ANY_OBJECT,
    FLAT_PATH,
    read_response_format,
)
from trtllm_truss.requests import Guide
from trtllm_truss.validation import shown, shown_name

_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_OLDER = ("json", "regex", "choice", "grammar")


def read_guide(fields: SharedFields, text_format: Guide | None) -> tuple[str, Guide | None]:
    """Return the guide, and the name of its field, which means nothing without a guide.

    Args:
        fields: the fields.
        text_format: the guide of `text.format`.

    Raises:
        InvalidRequest: a field is malformed, or several constrain the answer.
    """
    guides = {
        FLAT_PATH: text_format,
        "response_format": read_response_format(fields.response_format),
        "structured_outputs": _structured(fields.structured_outputs or {}),
    }
    for kind in _OLDER:
        name = f"guided_{kind}"
        if (value := getattr(fields, name)) is not None:
            guides[name] = _guide(kind, value, name, name)
    given = [name for name, guide in guides.items() if guide is not None]
    if len(given) > 1:
        raise InvalidRequest(
            f"{' and '.join(given)} both constrain the answer; send one of them.", param=given[1]
        )
    name = given[0] if given else "response_format"
    return name, guides[name]


def _structured(options: Mapping[str, Any]) -> Guide | None:
    field = "structured_outputs"
    given = [name for name, value in options.items() if value is not None and value is not False]
    for name in given:
        if name not in _KINDS:
            raise InvalidRequest(
                f"{field}.{shown_name(name)} is not supported; send one of {', '.join(_KINDS)}.",
                param=field,
            )
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest(f"{field} holds {' and '.join(given)}; send one of them.", param=field)
    return _guide(given[0], options[given[0]], f"{field}.{given[0]}", field)


def _guide(kind: str, value: Any, name: str, param: str) -> Guide:
    if kind == "json":
        return Guide("json_schema", _schema(value, name, param))
    if kind == "json_object":
        return Guide("json_schema", ANY_OBJECT)
    if kind == "choice":
        return Guide("ebnf_grammar", _alternatives(value, name, param))
    if not isinstance(value, str) or not value:
        raise _wrong(name, value, "a text that is not empty", param)
    text = bounded(value, name, param)
    return Guide("regex", text) if kind == "regex" else Guide("ebnf_grammar", text)


def _schema(value: Any, name: str, param: str) -> str:
    try:
        if isinstance(value, str):
            value = parse_json_text(bounded(value, name, param), Budget(f" in {name}", param))
    except ValueError:
        pass
    if not isinstance(value, dict):
        raise _wrong(name, value, "a JSON schema", param)
    return schema_text(value, name, param)


def _alternatives(value: Any, name: str, param: str) -> str:
    """Write a grammar of texts; JSON's escapes are EBNF's."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise _wrong(name, value, "a list of texts, none of them empty", param)
    check_size(value, name, param)
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    return bounded(f"root ::= {texts}", name, param)


def _wrong(name: str, value: Any, wanted: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is {shown(value)}; it must be {wanted}.", param=param)
