"""Fields of both APIs: OpenAI's, and those beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from trtllm_truss.protocols.fields import (
    UNSERVED,
    Finite,
    NonEmpty,
    Unsupported,
    Words,
    body_field,
    invalid_request,
    listed,
    own_defaults,
    refuse_unsupported,
    with_request_fields,
)
from trtllm_truss.protocols.limits import MAX_BIASED_TOKENS, MAX_MODEL_CHARACTERS
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.validation import Strict

_OPENAIS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop")
"""Fields of the table that are OpenAI's."""

REFUSED_EXTENSIONS = {
    **UNSERVED,
    "cache_salt": Unsupported("all callers share the cache of prefixes"),
    "detokenize": Unsupported("answers are text", (True,)),
    "early_stopping": Unsupported("the engine decides when beams end", (False,)),
    "guided_whitespace_pattern": Unsupported("write it in a grammar"),
    "logits_processors": Unsupported("the engine runs no code of callers", ([],)),
    "lora_request": Unsupported("lora_task_id chooses the adapter"),
    "mm_processor_kwargs": Unsupported("prompts are text", ({},)),
    "priority": Unsupported("requests have no priorities", (0,)),
    "prompt_logprobs": Unsupported("the engine has no log probabilities of the prompt"),
    "return_context_logits": Unsupported("answers have no logits", (False,)),
    "return_generation_logits": Unsupported("answers have no logits", (False,)),
    "return_token_ids": Unsupported("answers are text", (False,)),
    "return_tokens_as_token_ids": Unsupported("tokens are returned as text", (False,)),
    "top_p_min": Unsupported("the engine's decay of top_p is not available", (0,)),
    "use_beam_search": Unsupported("beam_width chooses it", (False,)),
}
"""Unsupported fields of vLLM and of TensorRT-LLM's server."""

UNUSED_EXTENSIONS = {"guided_decoding_backend": "the engine has one"}
"""Fields of vLLM without effect, with the reasons."""


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


@with_request_fields("openai", without=_OPENAIS)
class OpenAIExtensions(Strict):
    """Fields beyond OpenAI's; the names are vLLM's."""

    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="What the answer must match: one of `json` (a schema), `json_object` (true), "
        "`regex`, `choice` (a list of texts) and `grammar` (EBNF).",
    )
    guided_json: dict[str, Any] | str | None = Field(
        None, description="The older form of `structured_outputs.json`."
    )
    guided_regex: NonEmpty | None = Field(
        None, description="The older form of `structured_outputs.regex`."
    )
    guided_choice: list[str] | None = Field(
        None, fail_fast=True, description="The older form of `structured_outputs.choice`."
    )
    guided_grammar: NonEmpty | None = Field(
        None, description="The older form of `structured_outputs.grammar`."
    )


class SharedFields(OpenAIExtensions):
    """Fields of both APIs."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model",
        description="Echoed; one model is served, by any name. The name of an adapter chooses it.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Limit of generated tokens; at most, and by default, the rest of the context.",
    )
    n: int = Field(1, ge=1, le=128, description="Choices for each prompt.")
    stop: Words = body_field(
        "stop_words", description='A text, or a list of them, that end a choice; `""` is none.'
    )
    stream: bool = Field(False, description="Server-sent events, the last one `[DONE]`.")
    stream_options: StreamOptions | None = Field(
        None,
        description="`include_usage`; with it, `continuous_usage_stats` adds the usage so far to "
        "every event; `include_obfuscation` may only be false.",
    )
    temperature: Finite = body_field("temperature", default=1.0, le=2)
    top_p: Finite = body_field("top_p", default=1.0)
    presence_penalty: Finite | None = body_field("presence_penalty", description="As OpenAI's.")
    frequency_penalty: Finite | None = body_field("frequency_penalty", description="As OpenAI's.")
    seed: int | None = body_field("seed", ge=-(2**63))
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict,
        max_length=MAX_BIASED_TOKENS,
        description="Values added to logits, by token id; needs a checkpoint as engine.",
    )
    response_format: dict[str, Any] | None = Field(
        None,
        description="`text`, `json_object`, `json_schema`; beyond OpenAI's: `regex` and `grammar` "
        "(EBNF), each with its text under the same name, and a schema as `value` (TGI's form) or "
        "`schema` of a `json_object`.",
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
        refused: unsupported fields.
        unused: fields without effect, with the reasons.

    Raises:
        InvalidRequest: a field is unknown, unsupported, of the wrong type or out of range.
    """
    sent = {}
    for name, value in body.items():
        if name in unused or (value is None and (name in refused or name in model.model_fields)):
            continue
        if name in refused:
            refuse_unsupported(name, value, refused)
        else:
            sent[name] = listed(value) if name in ("stop", "bad_words") else value
    try:
        return model.model_validate({**_omitted(model, defaults, sent), **sent})
    except ValidationError as error:
        known = {*model.model_fields, *refused, *unused}
        raise invalid_request(error, known) from None


def _omitted(
    model: type[SharedFields], defaults: Mapping[str, Any], sent: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the defaults, by OpenAI's names, without those that a sent field replaces."""
    values = own_defaults(defaults, model, "openai")
    values.pop("stream", None)
    if "max_completion_tokens" in sent:
        values.pop("max_tokens", None)
    return values
