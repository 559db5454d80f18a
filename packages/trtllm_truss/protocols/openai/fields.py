"""Fields of both APIs: OpenAI's, and those beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from trtllm_truss.protocols.fields import (
    INT32_MAX,
    Extensions,
    Finite,
    Unsupported,
    Words,
    invalid_request,
    refuse_unsupported,
)
from trtllm_truss.protocols.limits import MAX_BIASED_TOKENS, MAX_MODEL_CHARACTERS
from trtllm_truss.validation import Strict

_NAMES_OF_DEFAULTS = {"stop_words": "stop"}
"""OpenAI's names of defaults, by their names in settings."""


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False


class SharedFields(Extensions):
    """Fields of both APIs."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model", description="Echoed; one model is served, by any name."
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Limit of generated tokens; default: the rest of the context.",
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
    top_p: Finite = Field(1.0, ge=0, le=1, description="Cumulative probability to sample from.")
    presence_penalty: Finite | None = Field(None, ge=-2, le=2, description="As OpenAI's.")
    frequency_penalty: Finite | None = Field(None, ge=-2, le=2, description="As OpenAI's.")
    seed: int | None = Field(
        None, ge=-(2**63), le=2**64 - 1, description="Makes sampling repeatable; default: random."
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict,
        max_length=MAX_BIASED_TOKENS,
        description="Values added to logits, by token id; no engine supports it.",
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
    """Validate the fields of a body. A field that is null counts as omitted.

    Args:
        model: the supported fields.
        body: the JSON object.
        defaults: values for omitted fields, by the names of the predict body.
        refused: OpenAI's unsupported fields.
        unused: OpenAI's fields without effect, with the reasons.

    Raises:
        InvalidRequest: a field is unknown, unsupported, of the wrong type or out of range.
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
        known = {*model.model_fields, *refused, *unused}
        raise invalid_request(error, known) from None


def _named(defaults: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults by OpenAI's names, without those that a sent field replaces."""
    values = {_NAMES_OF_DEFAULTS.get(name, name): value for name, value in defaults.items()}
    values.pop("stream", None)
    if "max_completion_tokens" in sent:
        values.pop("max_tokens", None)
    return values
