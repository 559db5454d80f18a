"""The body of `predict`: fields, ranges and aliases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest, RequestError, SettingsError
from trtllm_truss.protocols.fields import (
    INT32_MAX,
    LEAST,
    Finite,
    NonEmpty,
    Words,
    invalid_request,
    named_once,
)
from trtllm_truss.protocols.limits import MAX_MESSAGES
from trtllm_truss.requests import GenerationRequest, Sampling
from trtllm_truss.validation import Strict

ALIASES = {
    "stop_words_list": "stop_words",
    "stop": "stop_words",
    "bad_words_list": "bad_words",
    "min_length": "min_tokens",
    "random_seed": "seed",
}
"""Field by alias."""

_SAMPLING = {field.name for field in fields(Sampling)}


class Message(Strict):
    """One turn of a conversation."""

    role: NonEmpty
    content: str
    name: str | None = None


class PredictBody(Strict):
    """The fields of a predict body; other fields are rejected."""

    prompt: NonEmpty | None = None
    messages: (
        Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
        | None
    ) = None
    max_tokens: int = Field(50, ge=1, le=INT32_MAX)
    stop_words: Words = Field(default_factory=list)
    bad_words: Words = Field(default_factory=list)
    beam_width: int = Field(1, ge=1, le=INT32_MAX)
    repetition_penalty: Finite | None = Field(None, ge=LEAST, le=100)
    temperature: Finite | None = Field(None, ge=0, le=100)
    top_k: int | None = Field(None, ge=0, le=1024)
    top_p: Finite | None = Field(None, ge=LEAST, le=1)
    presence_penalty: Finite | None = Field(None, ge=-2, le=2)
    frequency_penalty: Finite | None = Field(None, ge=-2, le=2)
    length_penalty: Finite | None = Field(None, ge=-100, le=100)
    min_tokens: int | None = Field(None, ge=0, le=INT32_MAX)
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    ignore_eos: bool = False
    stream: bool = True


_KNOWN = [*PredictBody.model_fields, *ALIASES]


def parse_predict(
    body: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[GenerationRequest, bool]:
    """Parse a predict body into a request and its `stream` field; null counts as missing.

    Args:
        body: the JSON object.
        defaults: values of missing fields (`model_metadata.generation`).

    Raises:
        InvalidRequest: a field is missing, unknown, of the wrong type or out of range.
    """
    sent = _by_field(body)
    parsed = _validated({**defaults, **sent})
    if (parsed.prompt is None) == (parsed.messages is None):
        raise _prompt_problem(body, parsed)
    if parsed.min_tokens is not None and parsed.min_tokens > parsed.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {parsed.min_tokens}; it must be at most max_tokens, "
            f"{parsed.max_tokens}.",
            param="min_tokens",
        )
    messages = None
    if parsed.messages is not None:
        messages = [message.model_dump(exclude_none=True) for message in parsed.messages]
    request = GenerationRequest(
        prompt=parsed.prompt,
        messages=messages,
        max_tokens=parsed.max_tokens,
        max_tokens_given="max_tokens" in sent,
        stop_words=tuple(parsed.stop_words),
        bad_words=tuple(parsed.bad_words),
        beam_width=parsed.beam_width,
        ignore_eos=parsed.ignore_eos,
        sampling=Sampling(**parsed.model_dump(include=_SAMPLING)),
    )
    return request, parsed.stream


def parse_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Validate `model_metadata.generation` by the rules of a body.

    Raises:
        SettingsError: a default is unknown, of the wrong type or out of range.
    """
    for name in ("prompt", "messages"):
        if name in generation:
            raise SettingsError(
                f"config.yaml: model_metadata.generation.{name} is not a default; remove it."
            )
    try:
        defaults = _by_field(generation)
        _validated(defaults)
    except RequestError as error:
        raise SettingsError(f"config.yaml: model_metadata.generation: {error.message}") from None
    return defaults


def response_form(accept: str, stream: bool) -> Literal["text", "events", "json"]:
    """Choose the form of the answer by the `Accept` header and the field `stream`."""
    wanted = accept.lower()
    if not stream:
        return "json"
    if "text/event-stream" in wanted:
        return "events"
    return "json" if "application/json" in wanted else "text"


def _by_field(body: Mapping[str, Any]) -> dict[str, Any]:
    """Drop known fields that are null, and resolve aliases."""
    sent = {name: value for name, value in body.items() if value is not None or name not in _KNOWN}
    return named_once(sent, ALIASES, ("stop_words", "bad_words"))


def _validated(values: Mapping[str, Any]) -> PredictBody:
    try:
        return PredictBody.model_validate(values)
    except ValidationError as error:
        raise invalid_request(error, _KNOWN) from None


def _prompt_problem(body: Mapping[str, Any], parsed: PredictBody) -> InvalidRequest:
    if parsed.prompt is not None:
        return InvalidRequest(
            "prompt and messages are both given; send one of them.", param="messages"
        )
    was = "null" if "prompt" in body else "missing"
    return InvalidRequest(
        f"prompt is {was}; send the text to continue, or a conversation as messages.",
        param="prompt",
    )
