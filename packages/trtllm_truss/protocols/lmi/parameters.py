"""The fields under `parameters`: LMI's, its TensorRT-LLM handler's, and TGI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import (
    UNSERVED,
    Finite,
    Unsupported,
    body_field,
    invalid_request,
    named_once,
    own_defaults,
    refuse_unsupported,
    with_request_fields,
)
from trtllm_truss.protocols.guide_text import schema_guide, text_guide, wrong
from trtllm_truss.protocols.lmi.call import LmiForm
from trtllm_truss.request_fields import INT32_MAX, SAMPLING, Sampling
from trtllm_truss.requests import Guide
from trtllm_truss.validation import Strict

ALIASES = {
    "stop": "stop_sequences",
    "request_output_len": "max_new_tokens",
    **{
        tensor: name
        for row in SAMPLING
        if (name := row.name_in("lmi"))
        for tensor in row.tensors
        if tensor != name
    },
    "ignore_eos": "ignore_eos_token",
}
"""Field by alias: TGI's, the backend's tensors, which LMI forwards, and ours."""

_LISTS_OF_TEXTS = ("stop_sequences", "bad_sequences")

UNSUPPORTED = {
    **UNSERVED,
    "adapter_id": Unsupported("adapters are chosen by lora_task_id"),
    "best_of": Unsupported("one sequence is generated", (0, 1)),
    "early_stopping": Unsupported("beam search is not offered here", (False,)),
    "logit_bias": Unsupported("the engine takes no biases", ({},)),
    "logprobs": Unsupported("details include the log probabilities", (0, 1)),
    "n": Unsupported("one sequence is generated", (1,)),
    "num_beams": Unsupported("beam search is not offered here", (1,)),
    "prompt_logprobs": Unsupported("the engine gives no log probabilities of a prompt", (0,)),
    "streaming": Unsupported("use stream, next to parameters", (True,)),
    "top_n_tokens": Unsupported("the engine returns the chosen token only", (0,)),
    "watermark": Unsupported("text is not watermarked", (False,)),
}

_UNLIMITED = 1.0


class Grammar(Strict):
    """TGI's guide: `json` takes a schema, `json_schema` one under `schema`, `regex` a string."""

    type: str
    value: Any


_GRAMMARS = ("json", "json_schema", "regex")


@with_request_fields("lmi")
class Parameters(Strict):
    """The supported parameters, with the defaults of LMI's TensorRT-LLM handler."""

    max_new_tokens: int = Field(30, ge=1, le=INT32_MAX, description="Tokens to generate.")
    do_sample: bool | None = Field(
        None,
        description="True draws from the top 5 tokens and 0.85 of probability at temperature 0.8, "
        "where these are not set; false is greedy; left out, it follows from the other fields.",
    )
    top_p: Finite | None = body_field(
        "top_p", description="Probability to draw from; 0 sets no limit."
    )
    grammar: Grammar | None = Field(
        None, description="What the answer must match: type `json`, `json_schema` or `regex`."
    )
    details: bool | None = Field(None, description="Return the tokens and the finish reason.")
    decoder_input_details: bool = Field(
        False,
        description="Return the input's tokens as `prefill`, without log probabilities; needs "
        "details, and no stream.",
    )
    return_full_text: bool = Field(
        False, description="Whether `generated_text` begins with the input."
    )
    output_formatter: LmiForm | None = Field(
        None, strict=False, description="`json`, `jsonlines` or `sse`; default: as `stream` says."
    )


def read_parameters(sent: Mapping[str, Any], defaults: Mapping[str, Any]) -> Parameters:
    """Validate the parameters of a body; null counts as missing.

    Args:
        sent: `parameters`.
        defaults: values of missing parameters, by the names of the predict body.

    Raises:
        InvalidRequest: a parameter is unknown, unsupported, of the wrong type or out of range.
    """
    known = [*Parameters.model_fields, *ALIASES, *UNSUPPORTED]
    given = {name: value for name, value in sent.items() if value is not None or name not in known}
    for name in [name for name in given if name in UNSUPPORTED]:
        refuse_unsupported(name, given.pop(name), UNSUPPORTED, within="parameters.")
    values = named_once(given, ALIASES, _LISTS_OF_TEXTS, within="parameters.")
    try:
        return Parameters.model_validate({**_own(defaults), **values})
    except ValidationError as error:
        found = invalid_request(error, known)
        raise InvalidRequest(f"parameters: {found.message}", param=found.param) from None


def _own(defaults: Mapping[str, Any]) -> dict[str, Any]:
    values = own_defaults(defaults, Parameters, "lmi")
    if "max_tokens" in defaults:
        values["max_new_tokens"] = defaults["max_tokens"]
    return values


def read_grammar(grammar: Grammar | None) -> Guide | None:
    """Convert a grammar to a guide.

    Raises:
        InvalidRequest: the type is unknown, or the value does not fit it.
    """
    if grammar is None:
        return None
    path, value = "parameters.grammar", grammar.value
    if grammar.type not in _GRAMMARS:
        raise wrong(f"{path}.type", grammar.type, f"one of {', '.join(_GRAMMARS)}", "grammar")
    if grammar.type == "regex":
        return text_guide("regex", value, f"{path}.value", "grammar")
    if grammar.type == "json_schema" and isinstance(value, dict):
        value = value.get("schema", value)
    return schema_guide(value, f"{path}.value", "grammar", as_text=True)


def choose_sampling(sampling: Sampling, parameters: Parameters) -> None:
    """Set temperature, top_k and top_p by LMI's `do_sample` and its defaults.

    The engine is greedy at any temperature unless top_k or top_p is set. LMI samples since 0.32 if
    only a temperature is set, so that case gets a top_p of 1.
    """
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, parameters.top_p
    asked = parameters.do_sample
    if asked is None:
        asked = bool(temperature or top_k or top_p)
    if not asked or temperature == 0:
        temperature, top_k, top_p = None, 1, None
    elif parameters.do_sample:
        temperature = 0.8 if temperature is None else temperature
        top_k = 5 if top_k is None else top_k
        top_p = 0.85 if top_p is None else top_p or _UNLIMITED
    else:
        top_k = top_k or None
        top_p = top_p or (None if top_k else _UNLIMITED)
    sampling.temperature, sampling.top_k, sampling.top_p = temperature, top_k, top_p
