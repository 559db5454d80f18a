"""Field types and field errors of all protocols."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sized
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.limits import MAX_WORD_CHARACTERS, MAX_WORDS
from trtllm_truss.requests import Sampling
from trtllm_truss.validation import (
    SHOWN_CHARACTERS,
    Strict,
    broken_rule,
    did_you_mean,
    dotted_path,
    shown,
    shown_name,
)

INT32_MAX = 2**31 - 1
LEAST = 1e-6
"""Minimum of positive numbers: the engine's 32-bit floats round smaller ones to 0."""

NonEmpty = Annotated[str, Field(min_length=1)]
Word = Annotated[str, Field(min_length=1, max_length=MAX_WORD_CHARACTERS)]
Words = Annotated[list[Word], Field(fail_fast=True, max_length=MAX_WORDS)]
"""Stop words or bad words. Without `fail_fast` pydantic collects an error per item."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
TopK = Annotated[
    int, Field(ge=0, le=1024), BeforeValidator(lambda value: 0 if value == -1 else value)
]
"""A number of tokens to sample from; 0, or vLLM's -1, sets no limit."""

TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(fail_fast=True, max_length=MAX_WORDS)
]


class Extensions(Strict):
    """Fields beyond the API of a protocol; the names are those of the predict body, or vLLM's."""

    top_k: TopK | None = Field(
        None, description="Number of tokens to sample from, at most 1024; 0 and -1 set no limit."
    )
    repetition_penalty: Finite | None = Field(
        None, ge=LEAST, le=100, description="Divides the logits of tokens that occurred."
    )
    length_penalty: Finite | None = Field(
        None, ge=-100, le=100, description="Exponent of the length in beam search."
    )
    min_tokens: int | None = Field(
        None, ge=0, le=INT32_MAX, description="Minimum of tokens to generate."
    )
    ignore_eos: bool = Field(False, description="Continue past the model's end of sequence.")
    bad_words: Words = Field(default_factory=list, description="Texts that must not be generated.")
    beam_width: int = Field(1, ge=1, le=INT32_MAX, description="Beams.")
    lora_task_id: int | None = Field(
        None, ge=0, le=2**64 - 1, description="The adapter to generate with."
    )
    skip_special_tokens: bool = Field(True, description="Omit special tokens from the text.")
    include_stop_str_in_output: bool = Field(False, description="Include the stop text.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="Keep only the prompt's last tokens."
    )


_SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))


def read_sampling(fields: Strict) -> Sampling:
    """Return the sampling of validated fields, which have the names of `Sampling`'s attributes."""
    values = {name: getattr(fields, name) for name in _SAMPLING}
    if values["top_p"] is not None:
        # 0, the likeliest token alone, means "not set" to the engine.
        values["top_p"] = max(values["top_p"], LEAST)
    if values["seed"] is not None:
        values["seed"] %= 2**64
    return Sampling(**values)


def check_min_tokens(min_tokens: int | None, max_tokens: int, limit: str = "max_tokens") -> None:
    """Refuse a minimum of tokens above their limit.

    Raises:
        InvalidRequest: `min_tokens` exceeds `max_tokens`, which the message calls `limit`.
    """
    if (min_tokens or 0) > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {min_tokens}; it must be at most {limit}, {max_tokens}.",
            param="min_tokens",
        )


class Unsupported(NamedTuple):
    """An unsupported field of a protocol.

    Attributes:
        reason: end of the error message.
        neutral: accepted values, which have no effect.
    """

    reason: str
    neutral: tuple[Any, ...] = ()


def refuse_unsupported(
    name: str, value: Any, table: Mapping[str, Unsupported], *, within: str = ""
) -> None:
    """Accept only neutral values of an unsupported field.

    Raises:
        InvalidRequest: the value would have an effect.
    """
    if value in table[name].neutral:
        return
    raise InvalidRequest(
        f"{within}{name} is {shown(value)}; it is not supported: {table[name].reason}. "
        "Leave it out.",
        param=name,
    )


def named_once(
    sent: Mapping[str, Any], aliases: Mapping[str, str], texts: Collection[str], *, within: str = ""
) -> dict[str, Any]:
    """Resolve aliases of fields.

    Args:
        sent: values by the caller's names.
        aliases: field by alias.
        texts: fields with a list of strings, which accept a single string too; an empty one is no
            string.
        within: prefix of names in messages.

    Raises:
        InvalidRequest: a field is given under two names.
    """
    fields: dict[str, Any] = {}
    for name, value in sent.items():
        field = aliases.get(name, name)
        if field in fields:
            raise InvalidRequest(
                f"{within}{name} and another name of {field} are both given; send one of them.",
                param=name,
            )
        fields[field] = listed(value) if field in texts else value
    return fields


def listed(value: Any) -> Any:
    """Return the list of a single string, which is empty for an empty one; else the value."""
    return [value] * bool(value) if isinstance(value, str) else value


def invalid_request(error: ValidationError, known: Iterable[str]) -> InvalidRequest:
    """Build the error of a failed validation from its first finding.

    Args:
        error: the validation error.
        known: all field names, for suggestions.
    """
    finding: dict[str, Any] = dict(error.errors(include_url=False)[0])
    location = [p if isinstance(p, int) else p[:SHOWN_CHARACTERS] for p in finding["loc"]]
    path = dotted_path(location)
    if finding["type"] == "extra_forbidden":
        return unknown_field(path, known)
    if finding["type"] == "missing":
        return InvalidRequest(f"{path} is missing.", param=path)
    param = str(location[0]) if location else None
    return InvalidRequest(f"{broken_rule(finding, path)}.", param=param)


def check_length(name: str, items: Sized, maximum: int, *, param: str, unit: str = "items") -> None:
    """Refuse a list or text that is too long.

    Raises:
        InvalidRequest: it has more than `maximum` of `unit`.
    """
    if len(items) > maximum:
        raise InvalidRequest(
            f"{name} has {len(items)} {unit}; it must have at most {maximum} {unit}.",
            param=param,
        )


def unknown_field(name: str, known: Iterable[str]) -> InvalidRequest:
    """Build the error that refuses a field by name."""
    names = sorted(known)
    close = did_you_mean(name, names)
    hint = f"did you mean {close}?" if close else f"the fields are {', '.join(names)}."
    return InvalidRequest(
        f"{shown_name(name)} is not a field of this request; {hint}", param=name[:SHOWN_CHARACTERS]
    )
