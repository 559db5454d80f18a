"""`response_format` to a guide.

`text`, `json_object` and `json_schema` are OpenAI's
(https://platform.openai.com/docs/guides/structured-outputs), and so is `grammar`, which its client
knows as a type; `regex` is the form of TensorRT-LLM's own server. A `json_object` may hold a
schema: as `value` in TGI's form, which huggingface_hub makes of a `json_schema`
(https://huggingface.co/docs/text-generation-inference/conceptual/guidance), or as `schema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.guide_text import bounded, schema_text
from trtllm_truss.requests import Guide, GuideKind
from trtllm_truss.validation import shown

FLAT_PATH = "text.format"
_PATH = "response_format"
_TEXTS: dict[str, GuideKind] = {"regex": "regex", "grammar": "ebnf_grammar"}
ANY_OBJECT = json.dumps({"type": "object", "additionalProperties": True})
"""The backend's own `json` also accepts arrays."""

_OBJECT_SCHEMAS = ("value", "schema")
_TYPES = ("text", "json_object", "json_schema", *_TEXTS)


def read_response_format(
    response_format: Mapping[str, Any] | None, *, flat: bool = False
) -> Guide | None:
    """Return the guide of a `response_format`; None for unrestricted text.

    Args:
        response_format: the field.
        flat: whether it is the `text.format` of Responses, which holds the schema itself.

    Raises:
        InvalidRequest: its type is unknown, or it lacks the key that its type requires.
    """
    if response_format is None:
        return None
    path, kind = FLAT_PATH if flat else _PATH, response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Guide("json_schema", _object_schema(response_format, path))
    if kind == "json_schema":
        if flat:
            return Guide("json_schema", _schema(response_format, path))
        description = response_format.get("json_schema")
        if not isinstance(description, dict):
            raise _wrong(f"{path}.json_schema", description, "an object that holds the schema")
        return Guide("json_schema", _schema(description, f"{path}.json_schema"))
    if isinstance(kind, str) and kind in _TEXTS:
        text = response_format.get(kind)
        if not isinstance(text, str) or not text:
            raise _wrong(f"{path}.{kind}", text, "a text that is not empty")
        return Guide(_TEXTS[kind], bounded(text, f"{path}.{kind}", _field(path)))
    raise _wrong(f"{path}.type", kind, f"one of {', '.join(_TYPES)}")


def _object_schema(response_format: Mapping[str, Any], path: str) -> str:
    for key in _OBJECT_SCHEMAS:
        if response_format.get(key) is not None:
            return _schema(response_format, path, key)
    return ANY_OBJECT


def _schema(description: Mapping[str, Any], path: str, key: str = "schema") -> str:
    schema = description.get(key)
    if not isinstance(schema, dict):
        raise _wrong(f"{path}.{key}", schema, "a JSON schema")
    return schema_text(schema, f"{path}.{key}", _field(path))


def _wrong(path: str, value: Any, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{path} is {shown(value)}; it must be {wanted}.", param=_field(path))


def _field(path: str) -> str:
    return FLAT_PATH if path.startswith(FLAT_PATH) else _PATH
