"""Fields of both APIs to arguments of a `GenerationRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import (
    attribute_names,
    check_min_tokens,
    request_arguments,
)
from trtllm_truss.protocols.openai.fields import SharedFields, StreamOptions
from trtllm_truss.protocols.openai.guides import read_guide
from trtllm_truss.requests import REST_OF_CONTEXT, Guide
from trtllm_truss.validation import shown

_NAMES = {**attribute_names("openai"), "prompt_ids": "prompt", "guide": "response_format"}
"""Names of a request's attributes in both APIs, where they differ."""


def generation_arguments(
    fields: SharedFields,
    *,
    max_tokens: int | None,
    max_tokens_given: bool,
    names: Mapping[str, str],
    text_format: Guide | None = None,
) -> dict[str, Any]:
    """Return the arguments of a `GenerationRequest` that do not depend on the API.

    Args:
        fields: the fields, with defaults.
        max_tokens: the limit; None for the rest of the context.
        max_tokens_given: whether the caller chose it.
        names: this API's own names of a request's attributes.
        text_format: the guide of `text.format`, which Responses has for `response_format`.

    Raises:
        InvalidRequest: fields contradict each other.
    """
    arguments = request_arguments(fields, "openai")
    _check_agreement(fields.n, arguments, max_tokens)
    guide_field, guide = read_guide(fields, text_format)
    options = stream_options(fields)
    return {
        **arguments,
        "max_tokens": REST_OF_CONTEXT if max_tokens is None else max_tokens,
        "max_tokens_given": max_tokens_given,
        "n": fields.n,
        "logit_bias": _by_token_id(fields.logit_bias),
        "guide": guide,
        "model": fields.model,
        "running_usage": options.include_usage and options.continuous_usage_stats,
        "names": {**_NAMES, **names, **({} if guide is None else {"guide": guide_field})},
    }


def alternatives_of_engine(
    fields: SharedFields, alternatives: int | None, *, top_is_chosen: bool
) -> int | None:
    """Return the number of alternatives per token that the engine must report.

    Most engines report the chosen token only. In greedy decoding it is the likeliest one, too.

    Args:
        fields: the fields, with defaults.
        alternatives: the requested number; None for no log probabilities.
        top_is_chosen: LMI's meaning of 1, which is the chosen token.
    """
    if alternatives == 1 and (top_is_chosen or _takes_likeliest(fields)):
        return 0
    return alternatives


def _takes_likeliest(fields: SharedFields) -> bool:
    arguments = request_arguments(fields, "openai")
    greedy = 0 in (fields.temperature, fields.top_p) or arguments["sampling"].top_k == 1
    return greedy and bool(arguments["beam_width"] == 1)


def stream_options(fields: SharedFields) -> StreamOptions:
    """Return the options of the stream.

    Raises:
        InvalidRequest: `stream_options` without a stream, or with an unsupported option.
    """
    options = fields.stream_options
    if options is None:
        return StreamOptions()
    if not fields.stream:
        raise InvalidRequest(
            "stream_options are given, but stream is false; leave them out, or stream.",
            param="stream_options",
        )
    if options.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation is true; events are not padded. Leave it out.",
            param="stream_options",
        )
    return options


def _check_agreement(n: int, arguments: Mapping[str, Any], max_tokens: int | None) -> None:
    if 1 < arguments["beam_width"] < n:
        raise InvalidRequest(
            f"n is {n}; it must be at most beam_width, {arguments['beam_width']}.", param="n"
        )
    if max_tokens is not None:
        check_min_tokens(arguments["sampling"].min_tokens, max_tokens, "the tokens to generate")


def _by_token_id(logit_bias: dict[str, float]) -> dict[int, float]:
    for name in logit_bias:
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidRequest(
                f"logit_bias has the key {shown(name)}; keys must be token ids.",
                param="logit_bias",
            )
    return {int(name): bias for name, bias in logit_bias.items()}
