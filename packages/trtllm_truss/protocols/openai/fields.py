"""The fields that both APIs have in common: OpenAI's own, and those it has no name for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from trtllm_truss.protocols.fields import (
    INT32_MAX,
    LEAST,
    Finite,
    Unsupported,
    Words,
    invalid_request,
    refuse_unsupported,
)
from trtllm_truss.protocols.limits import MAX_BIASED_TOKENS, MAX_MODEL_CHARACTERS
from trtllm_truss.validation import Strict

_NAMES_OF_DEFAULTS = {"stop_words": "stop"}
"""Names of the predict body, in which settings give defaults, that OpenAI calls otherwise."""


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Extensions(Strict):
    """What OpenAI has no name for; the names are those of the predict body, or vLLM's."""

    top_k: int | None = Field(None, ge=0, le=1024, description="Tokens to draw from.")
    repetition_penalty: Finite | None = Field(
        None, ge=LEAST, le=100, description="Divides the logits of tokens that occurred."
    )
    length_penalty: Finite | None = Field(
        None, ge=-100, le=100, description="Exponent of the length in beam search."
    )
    min_tokens: int | None = Field(
        None, ge=0, le=INT32_MAX, description="Tokens to generate at least."
    )
    ignore_eos: bool = Field(False, description="Go on past the model's end of sequence.")
    bad_words: Words = Field(default_factory=list, description="Texts that must not be generated.")
    beam_width: int = Field(1, ge=1, le=INT32_MAX, description="Beams.")
    lora_task_id: int | None = Field(
        None, ge=0, le=2**64 - 1, description="The adapter to generate with."
    )
    skip_special_tokens: bool = Field(True, description="Whether special tokens do not show.")
    include_stop_str_in_output: bool = Field(False, description="Whether the stop text is shown.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Keeps the prompt's last tokens only."
    )


class SharedFields(Extensions):
    """What a caller may send to either API."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model", description="Echoed; one model is served, by any name."
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Tokens to generate; default: what the context leaves.",
    )
    n: int = Field(1, ge=1, le=128, description="Choices for each prompt.")
    stop: Words = Field(
        default_factory=list, description="A text, or a list of them, that end a choice."
    )
    stream: bool = Field(False, description="Server-sent events, the last one `[DONE]`.")
    stream_options: StreamOptions | None = Field(
        None, description="`include_usage`; `include_obfuscation` may only be false."
    )
    temperature: Finite = Field(1.0, ge=0, le=2, description="0 is greedy.")
    top_p: Finite = Field(1.0, ge=0, le=1, description="Probability to draw from.")
    presence_penalty: Finite | None = Field(None, ge=-2, le=2, description="As OpenAI's.")
    frequency_penalty: Finite | None = Field(None, ge=-2, le=2, description="As OpenAI's.")
    seed: int | None = Field(
        None, ge=-(2**63), le=2**64 - 1, description="Makes drawing repeatable; default: random."
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict,
        max_length=MAX_BIASED_TOKENS,
        description="From token ids to what is added to their logits; no engine takes it so far.",
    )
    response_format: dict[str, Any] | None = Field(
        None,
        description="`text`, `json_object`, `json_schema`; beyond OpenAI's: `regex` and `grammar` "
        "(EBNF), each with its text under the same name.",
    )


Body = TypeVar("Body", bound=SharedFields)


def read_body(
    model: type[Body],
    body: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    refused: Mapping[str, Unsupported],
    unused: Mapping[str, str],
) -> Body:
    """The fields of a body, checked. A field that is null counts as not sent.

    Args:
        model: the fields that are served.
        body: the JSON object that the caller sent.
        defaults: values for fields that the caller left out, by the names of the predict body.
        refused: OpenAI's fields that are not served.
        unused: OpenAI's fields that have no effect here, and why.

    Raises:
        InvalidRequest: a field is unknown, not served, of the wrong type or out of range.
    """
    sent = {}
    for name, value in body.items():
        if name in unused or (value is None and (name in refused or name in model.model_fields)):
            continue
        if name in refused:
            refuse_unsupported(name, value, refused)
        elif name in ("stop", "bad_words") and isinstance(value, str):
            sent[name] = [value]
        else:
            sent[name] = value
    try:
        return model.model_validate({**_named(defaults, sent), **sent})
    except ValidationError as error:
        known = [*model.model_fields, *refused, *unused]
        raise invalid_request(error, known) from None


def _named(defaults: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults by OpenAI's names, without those that another name of the same field replaces."""
    values = {_NAMES_OF_DEFAULTS.get(name, name): value for name, value in defaults.items()}
    values.pop("stream", None)
    if "max_completion_tokens" in sent:
        values.pop("max_tokens", None)
    return values
