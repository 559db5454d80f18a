"""Parse LMI bodies: dispatch, inputs, and conversion of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import (
    check_length,
    request_arguments,
    unknown_field,
)
from trtllm_truss.protocols.limits import MAX_PROMPTS
from trtllm_truss.protocols.lmi.call import LmiCall, LmiForm
from trtllm_truss.protocols.lmi.parameters import (
    ALIASES,
    Parameters,
    choose_sampling,
    read_grammar,
    read_parameters,
)
from trtllm_truss.request_fields import rows_of
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.validation import is_unicode, shown

FIELDS = {
    "inputs": "The text to continue, or a list of texts; a list is not streamed.",
    "parameters": "An object with the fields below.",
    "stream": "JSON lines, or server-sent events with `output_formatter`; default: false.",
    "model": "No effect: one model is served.",
    "model_name": "No effect: one model is served.",
}
"""The fields beside `parameters`."""

_NAMES = {
    "prompt": "inputs",
    "max_tokens": "parameters.max_new_tokens",
    "guide": "parameters.grammar",
    **{row.attribute: f"parameters.{name}" for name, row in rows_of("lmi").items()},
}
"""LMI's names of a request's attributes."""


def is_lmi(body: Mapping[str, Any]) -> bool:
    """Distinguish LMI bodies from other protocols of the route."""
    return "inputs" in body


def is_tgi_client(user_agent: str) -> bool:
    """Recognize huggingface_hub, which expects TGI's shapes, by its user agent."""
    return "hf_hub/" in user_agent


def parse_lmi(body: Mapping[str, Any], defaults: Mapping[str, Any], *, tgi: bool) -> LmiCall:
    """Parse an LMI body.

    Args:
        body: the JSON object.
        defaults: values of missing fields, by the names of the predict body; they override LMI's
            defaults.
        tgi: use the shapes of Text Generation Inference, like LMI's option `tgi_compat`.

    Raises:
        InvalidRequest: a field is missing, unknown, not served, of the wrong type or out of
            range, or two contradict each other.
    """
    for name in body:
        if name in Parameters.model_fields or name in ALIASES:
            raise InvalidRequest(f"{name} is beside parameters; send it inside.", param=name)
        if name not in FIELDS:
            raise unknown_field(name, FIELDS)
    if "inputs" not in body:
        raise InvalidRequest(
            "inputs is missing; send a text, or OpenAI's prompt or messages.",
            param="inputs",
        )
    inputs, listed = _inputs(body.get("inputs"))
    sent = _object(body.get("parameters"))
    parameters = read_parameters(sent, defaults)
    form = _form(body.get("stream"), parameters.output_formatter, tgi)
    details = tgi if parameters.details is None else parameters.details
    if listed and form is not LmiForm.JSON:
        raise InvalidRequest(
            "inputs is a list, which cannot be streamed; send one text, or no stream.",
            param="inputs",
        )
    arguments = _generation_arguments(sent, parameters)
    _check_agreement(parameters, arguments["sampling"].min_tokens, form, details)
    return LmiCall(
        requests=tuple(
            GenerationRequest(
                prompt=text,
                token_details=details or form is not LmiForm.JSON,
                **arguments,
            )
            for text in inputs
        ),
        listed=listed,
        form=form,
        tgi=tgi,
        details=details,
        return_full_text=parameters.return_full_text,
    )


def _generation_arguments(sent: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Return the arguments of `GenerationRequest` that do not depend on the input."""
    chosen = {ALIASES.get(name, name) for name, value in sent.items() if value is not None}
    arguments = request_arguments(parameters, "lmi")
    choose_sampling(arguments["sampling"], parameters)
    return {
        **arguments,
        "max_tokens": parameters.max_new_tokens,
        "max_tokens_given": "max_new_tokens" in chosen,
        "guide": read_grammar(parameters.grammar),
        "prompt_details": parameters.decoder_input_details,
        "names": _NAMES,
    }


def _inputs(inputs: Any) -> tuple[list[str], bool]:
    listed = isinstance(inputs, list)
    texts = inputs if listed else [inputs]
    check_length("inputs", texts, MAX_PROMPTS, param="inputs")
    for place, text in enumerate(texts):
        path = f"inputs[{place}]" if listed else "inputs"
        if not isinstance(text, str) or not text:
            raise InvalidRequest(
                f"{path} is {shown(text)}; it must be a non-empty string.", param="inputs"
            )
        if not is_unicode(text):
            raise InvalidRequest(
                f"{path} contains a lone surrogate; send whole characters.",
                param="inputs",
            )
    if not texts:
        raise InvalidRequest("inputs is []; it must not be empty.", param="inputs")
    return texts, listed


def _object(parameters: Any) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"parameters is {shown(parameters)}; it must be an object.", param="parameters"
        )
    return parameters


def _form(stream: Any, formatter: LmiForm | None, tgi: bool) -> LmiForm:
    if not isinstance(stream, bool | None):
        raise InvalidRequest(
            f"stream is {shown(stream)}; it must be true or false.", param="stream"
        )
    if not stream:
        return formatter or LmiForm.JSON
    if formatter is LmiForm.JSON:
        raise InvalidRequest(
            "parameters.output_formatter is json, but stream is true; choose jsonlines or sse.",
            param="output_formatter",
        )
    return formatter or (LmiForm.EVENTS if tgi else LmiForm.JSON_LINES)


def _check_agreement(
    parameters: Parameters, min_length: int | None, form: LmiForm, details: bool
) -> None:
    if parameters.decoder_input_details and (not details or form is not LmiForm.JSON):
        raise InvalidRequest(
            "parameters.decoder_input_details is true; it needs details, and no stream.",
            param="decoder_input_details",
        )
    if (min_length or 0) > parameters.max_new_tokens:
        raise InvalidRequest(
            f"parameters.min_length is {min_length}; it must be at most max_new_tokens, "
            f"{parameters.max_new_tokens}.",
            param="min_length",
        )
