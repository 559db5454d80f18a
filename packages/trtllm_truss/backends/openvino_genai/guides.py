"""What an answer must match: the guided-decoding inputs of one request."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trtllm_truss.backends.openvino_genai.guide_misreading import find_misread_pair
from trtllm_truss.backends.openvino_genai.refusal import Refusal
from trtllm_truss.backends.openvino_genai.tensors import Tensors

TYPE, TEXT = "guided_decoding_guide_type", "guided_decoding_guide"

Language = Literal["json_schema", "regex", "grammar"]
"""What OpenVINO GenAI calls the languages of guides."""

_LANGUAGES: dict[str, Language] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "grammar",
}
_ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
"""What XGrammar, and so TensorRT-LLM, takes for the type `json`."""


class Guide(NamedTuple):
    """A text in one of three languages, each as XGrammar knows it."""

    language: Language
    text: str


def read_guide(tensors: Tensors) -> Guide | None:
    """Read the guide of a request.

    Raises:
        Refusal: its type is unknown, or its text is missing, or not what the type says as far as
            that is seen without compiling it.
    """
    kind, text = tensors.text(TYPE), tensors.text(TEXT)
    if not kind:
        if text:
            raise Refusal(f"{TEXT} is given without {TYPE}; send {_names()}.")
        return None
    if kind == "json":
        return Guide("json_schema", _ANY_JSON)
    if kind not in _LANGUAGES:
        raise Refusal(f"{TYPE} is {kind[:40]!r}; send {_names()}.")
    if not text:
        raise Refusal(f"{TYPE} is {kind}, but {TEXT} is empty; send its text.")
    guide = Guide(_LANGUAGES[kind], text)
    _check(guide)
    return guide


def _check(guide: Guide) -> None:
    try:
        pair = find_misread_pair(*guide)
    except ValueError as error:
        raise Refusal(f"{TEXT} is not JSON ({error}); send a JSON schema.") from error
    except RecursionError as error:
        raise Refusal(f"{TEXT} is nested too deeply; send a simpler JSON schema.") from error
    if pair is not None:
        raise Refusal(
            f"{TEXT} has {pair!r}, two characters that the CPU engine takes for one in a name, a "
            "value or brackets; keep them apart, or spell it otherwise."
        )


def _names() -> str:
    return ", ".join(["json", *_LANGUAGES])
