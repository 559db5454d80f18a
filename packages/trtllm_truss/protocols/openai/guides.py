"""The guide of a body: OpenAI's `response_format`, or vLLM's fields.

Of a `response_format`, `text`, `json_object` and `json_schema` are OpenAI's
(https://platform.openai.com/docs/guides/structured-outputs), and so is `grammar`, which its client
knows as a type; `regex` is the form of TensorRT-LLM's own server. A `json_object` may hold a
schema: as `value` in TGI's form, which huggingface_hub makes of a `json_schema`
(https://huggingface.co/docs/text-generation-inference/conceptual/guidance), or as `schema`.

vLLM: https://docs.vllm.ai/en/latest/features/structured_outputs.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.guide_text import (
    ANY_OBJECT,
    bounded,
    check_size,
    schema_guide,
    text_guide,
    wrong,
)
from trtllm_truss.protocols.openai.fields import SharedFields
from trtllm_truss.requests import Guide, Language
from trtllm_truss.validation import shown_name

FLAT_PATH = "text.format"
_PATH = "response_format"
_TEXTS: dict[str, Language] = {"regex": "regex", "grammar": "ebnf_grammar"}
_OBJECT_SCHEMAS = ("value", "schema")
_TYPES = ("text", "json_object", "json_schema", *_TEXTS)
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
        return schema_guide(value, name, param, as_text=True)
    if kind == "json_object":
        return Guide("json_schema", ANY_OBJECT)
    if kind == "choice":
        return Guide("ebnf_grammar", _alternatives(value, name, param))
    return text_guide(_TEXTS[kind], value, name, param)


def _alternatives(value: Any, name: str, param: str) -> str:
    """Write a grammar of texts; JSON's escapes are EBNF's."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise wrong(name, value, "a list of texts, none of them empty", param)
    check_size(value, name, param)
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    return bounded(f"root ::= {texts}", name, param)


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
        for key in _OBJECT_SCHEMAS:
            if (schema := response_format.get(key)) is not None:
                return schema_guide(schema, f"{path}.{key}", path)
        return Guide("json_schema", ANY_OBJECT)
    if kind == "json_schema":
        holder = path if flat else f"{path}.json_schema"
        description = response_format if flat else response_format.get("json_schema")
        if not isinstance(description, Mapping):
            raise wrong(holder, description, "an object that holds the schema", path)
        return schema_guide(description.get("schema"), f"{holder}.schema", path)
    if isinstance(kind, str) and kind in _TEXTS:
        return text_guide(_TEXTS[kind], response_format.get(kind), f"{path}.{kind}", path)
    raise wrong(f"{path}.type", kind, f"one of {', '.join(_TYPES)}", path)
