"""The fields under `parameters`: LMI's, its TensorRT-LLM handler's, and TGI's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import (
    INT32_MAX,
    LEAST,
    Finite,
    TokenIds,
    TopK,
    Unsupported,
    Words,
    invalid_request,
    named_once,
    refuse_unsupported,
)
from trtllm_truss.protocols.lmi.call import LmiForm
from trtllm_truss.protocols.lmi.grammar import Grammar
from trtllm_truss.requests import Sampling
from trtllm_truss.validation import Strict

ALIASES = {
    "stop": "stop_sequences",
    "request_output_len": "max_new_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "min_tokens": "min_length",
    "random_seed": "seed",
    "ignore_eos": "ignore_eos_token",
}
"""Field by alias: TGI's, the backend's tensors, which LMI forwards, and ours."""

_LISTS_OF_TEXTS = ("stop_sequences", "bad_sequences")

UNSUPPORTED = {
    "adapter_id": Unsupported("adapters are chosen by lora_task_id"),
    "allowed_token_ids": Unsupported("the engine has no such limit", ([],)),
    "best_of": Unsupported("one sequence is generated", (0, 1)),
    "early_stopping": Unsupported("beam search is not offered here", (False,)),
    "logit_bias": Unsupported("the engine takes no biases", ({},)),
    "logprobs": Unsupported("details include the log probabilities", (0, 1)),
    "min_p": Unsupported("the engine has no such limit", (0,)),
    "n": Unsupported("one sequence is generated", (1,)),
    "num_beams": Unsupported("beam search is not offered here", (1,)),
    "prompt_logprobs": Unsupported("the engine gives no log probabilities of a prompt", (0,)),
    "spaces_between_special_tokens": Unsupported("the tokenizer decides", (True,)),
    "streaming": Unsupported("use stream, next to parameters", (True,)),
    "top_n_tokens": Unsupported("the engine returns the chosen token only", (0,)),
    "typical_p": Unsupported("the engine has no typical sampling", (1,)),
    "watermark": Unsupported("text is not watermarked", (False,)),
}

_GREEDY = Sampling(top_k=1)
_DRAWING = Sampling(temperature=0.8, top_k=5, top_p=0.85)
_UNLIMITED = 1.0


class Parameters(Strict):
    """The supported parameters, with the defaults of LMI's TensorRT-LLM handler."""

    max_new_tokens: int = Field(30, ge=1, le=INT32_MAX, description="Tokens to generate.")
    do_sample: bool | None = Field(
        None,
        description="True draws from the top 5 tokens and 0.85 of probability at temperature 0.8, "
        "where these are not set; false is greedy; left out, it follows from the other fields.",
    )
    temperature: Finite | None = Field(None, ge=0, le=100, description="0 is greedy.")
    top_k: TopK | None = Field(
        None, description="Tokens to draw from, at most 1024; 0 and -1 set no limit."
    )
    top_p: Finite | None = Field(
        None, ge=0, le=1, description="Probability to draw from; 0 sets no limit."
    )
    seed: int | None = Field(None, ge=0, le=2**64 - 1, description="Default: random.")
    repetition_penalty: Finite | None = Field(
        None, ge=LEAST, le=100, description="Divides the logits of tokens that occurred."
    )
    presence_penalty: Finite | None = Field(
        None, ge=-2, le=2, description="Taken off the logits of tokens that occurred."
    )
    frequency_penalty: Finite | None = Field(
        None, ge=-2, le=2, description="Taken off once for each time that they did."
    )
    length_penalty: Finite | None = Field(
        None, ge=-100, le=100, description="Exponent of the length in beam search."
    )
    min_length: int | None = Field(
        None, ge=0, le=INT32_MAX, description="Tokens to generate at least."
    )
    stop_sequences: Words = Field(
        default_factory=list, description="Texts that end the answer just before them."
    )
    stop_token_ids: TokenIds = Field(
        default_factory=list, description="Token ids that end the answer just before them."
    )
    bad_sequences: Words = Field(
        default_factory=list, description="Texts that must not be generated."
    )
    include_stop_str_in_output: bool = Field(
        False, description="Whether the stop sequence is part of the answer."
    )
    skip_special_tokens: bool = Field(True, description="Whether special tokens do not show.")
    ignore_eos_token: bool = Field(False, description="Go on past the model's end of sequence.")
    truncate: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Keeps the input's last tokens only."
    )
    grammar: Grammar | None = Field(
        None, description="What the answer must match: type `json`, `json_schema` or `regex`."
    )
    lora_task_id: int | None = Field(
        None, ge=0, le=2**64 - 1, description="The adapter to generate with."
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
        defaults: values of missing parameters, by LMI's names.

    Raises:
        InvalidRequest: a parameter is unknown, unsupported, of the wrong type or out of range.
    """
    known = [*Parameters.model_fields, *ALIASES, *UNSUPPORTED]
    given = {name: value for name, value in sent.items() if value is not None or name not in known}
    for name in [name for name in given if name in UNSUPPORTED]:
        refuse_unsupported(name, given.pop(name), UNSUPPORTED, within="parameters.")
    values = named_once(given, ALIASES, _LISTS_OF_TEXTS, within="parameters.")
    try:
        return Parameters.model_validate({**defaults, **values})
    except ValidationError as error:
        found = invalid_request(error, known)
        raise InvalidRequest(f"parameters: {found.message}", param=found.param) from None


def sampling_from(parameters: Parameters) -> Sampling:
    """Convert parameters to sampling by LMI's `do_sample` and its defaults.

    The engine is greedy at any temperature unless top_k or top_p is set. LMI samples since 0.32 if
    only a temperature is set, so that case gets a top_p of 1.
    """
    return replace(
        _choice(parameters),
        repetition_penalty=parameters.repetition_penalty,
        presence_penalty=parameters.presence_penalty,
        frequency_penalty=parameters.frequency_penalty,
        length_penalty=parameters.length_penalty,
        min_tokens=parameters.min_length,
        seed=parameters.seed,
    )


def _choice(parameters: Parameters) -> Sampling:
    """Return greedy decoding unless a parameter requests sampling."""
    temperature, top_k, top_p = parameters.temperature, parameters.top_k, parameters.top_p
    asked = parameters.do_sample
    if asked is None:
        asked = bool(temperature or top_k or top_p)
    if not asked or temperature == 0:
        return _GREEDY
    if parameters.do_sample:
        return Sampling(
            temperature=_DRAWING.temperature if temperature is None else temperature,
            top_k=_DRAWING.top_k if top_k is None else top_k,
            top_p=_DRAWING.top_p if top_p is None else top_p or _UNLIMITED,
        )
    return Sampling(
        temperature=temperature,
        top_k=top_k or None,
        top_p=top_p or (None if top_k else _UNLIMITED),
    )
