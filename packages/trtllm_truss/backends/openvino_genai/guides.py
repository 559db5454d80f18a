"""What an answer must match: the guided-decoding inputs of one request."""

from __future__ import annotations

from typing import get_args

from trtllm_truss.backends.openvino_genai.refusal import UnsupportedRequest
from trtllm_truss.backends.openvino_genai.tensors import Tensors
from trtllm_truss.guides.guide import Guide, Language

TYPE, TEXT = "guided_decoding_guide_type", "guided_decoding_guide"

_LANGUAGES: tuple[Language, ...] = get_args(Language)
_ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
"""What XGrammar, and so TensorRT-LLM, takes for the type `json`."""


def read_guide(tensors: Tensors) -> Guide | None:
    """Read the guide of a request.

    Raises:
        UnsupportedRequest: its type is unknown, or its text is missing.
    """
    kind, text = tensors.text(TYPE), tensors.text(TEXT)
    if not kind:
        if text:
            raise UnsupportedRequest(f"{TEXT} is given without {TYPE}; send {_names()}.")
        return None
    if kind == "json":
        return Guide("json_schema", _ANY_JSON)
    for language in _LANGUAGES:
        if kind == language and text:
            return Guide(language, text)
        if kind == language:
            raise UnsupportedRequest(f"{TYPE} is {kind}, but {TEXT} is empty; send its text.")
    raise UnsupportedRequest(f"{TYPE} is {kind[:40]!r}; send {_names()}.")


def _names() -> str:
    return ", ".join(["json", *_LANGUAGES])
