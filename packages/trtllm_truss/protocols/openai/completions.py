"""The body of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import Unsupported, check_length
from trtllm_truss.protocols.limits import MAX_PROMPTS
from trtllm_truss.protocols.openai.answers import CompletionShape, OpenAICall
from trtllm_truss.protocols.openai.fields import (
    REFUSED_EXTENSIONS,
    UNUSED_EXTENSIONS,
    SharedFields,
    read_body,
)
from trtllm_truss.protocols.openai.generation import (
    alternatives_of_engine,
    generation_arguments,
    stream_options,
)
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.validation import is_unicode, shown

Prompt = str | tuple[int, ...]


class CompletionExtensions(SharedFields):
    """Options of the prompt beyond OpenAI's fields; the names are vLLM's."""

    add_special_tokens: bool = Field(
        True, description="Add BOS and the like to a prompt that is a text."
    )


class CompletionFields(CompletionExtensions):
    """Fields of `/v1/completions`."""

    prompt: Any = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists."
    )
    max_tokens: int = Field(
        16,
        ge=0,
        le=INT32_MAX,
        description="Limit of generated tokens; 0 with `echo` returns the prompt.",
    )
    echo: bool = Field(False, description="Each choice begins with the prompt; not with logprobs.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="Alternatives to report for each token. More than 0, or in greedy decoding 1, "
        "needs a checkpoint as engine.",
    )
    best_of: int | None = Field(None, ge=1, description="May only be equal to n.")


REFUSED = {"suffix": Unsupported("insertion is not available", ("",))}

UNUSED = {"user": "nothing is stored about callers"}

_ALL_REFUSED = {**REFUSED_EXTENSIONS, **REFUSED}
_ALL_UNUSED = {**UNUSED_EXTENSIONS, **UNUSED}


def parse_completion(
    body: Mapping[str, Any], defaults: Mapping[str, Any], *, top_is_chosen: bool = False
) -> OpenAICall:
    """Parse a body of `/v1/completions`.

    Args:
        body: the JSON object.
        defaults: values for omitted fields, by the names of the predict body; then OpenAI's
            defaults apply.
        top_is_chosen: report the chosen token as the one alternative, as LMI does.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of
            range, or fields contradict each other.
    """
    fields = read_body(CompletionFields, body, defaults, refused=_ALL_REFUSED, unused=_ALL_UNUSED)
    _check_agreement(fields)
    arguments = generation_arguments(
        fields,
        max_tokens=fields.max_tokens,
        max_tokens_given=body.get("max_tokens") is not None,
        names={"log_probs": "logprobs"},
    )
    log_probs = alternatives_of_engine(fields, fields.logprobs, top_is_chosen=top_is_chosen)
    requests = tuple(
        GenerationRequest(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_ids=None if isinstance(prompt, str) else prompt,
            add_special_tokens=fields.add_special_tokens,
            echo=fields.echo,
            log_probs=log_probs,
            **arguments,
        )
        for prompt in _prompts(fields.prompt)
    )
    return OpenAICall(
        requests=requests,
        model=fields.model,
        stream=fields.stream,
        include_usage=stream_options(fields).include_usage,
        shape=CompletionShape(log_probs=fields.logprobs),
    )


def _check_agreement(fields: CompletionFields) -> None:
    if fields.best_of not in (None, fields.n):
        raise InvalidRequest(
            f"best_of is {fields.best_of}; it is not supported beyond n, {fields.n}. Leave it out.",
            param="best_of",
        )
    if fields.max_tokens == 0 and not fields.echo:
        raise InvalidRequest(
            "max_tokens is 0; it must be at least 1 without echo.", param="max_tokens"
        )
    if fields.echo and fields.logprobs is not None:
        raise InvalidRequest(
            "echo and logprobs are both given; the engine has no log probabilities of the prompt. "
            "Omit one of them.",
            param="echo",
        )


def _prompts(prompt: Any) -> list[Prompt]:
    """Return each prompt of the four accepted forms."""
    alone = isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and all(type(item) is int for item in prompt)
    )
    prompts = [prompt] if alone else prompt
    if isinstance(prompts, list) and not alone:
        check_length("prompt", prompts, MAX_PROMPTS, param="prompt")
    if not isinstance(prompts, list) or not prompts:
        raise InvalidRequest(
            f"prompt is {shown(prompt)}; it must be a text, a list of token ids, or a list of such "
            "prompts.",
            param="prompt",
        )
    return [
        _prompt(item, "prompt" if alone else f"prompt[{place}]")
        for place, item in enumerate(prompts)
    ]


def _prompt(prompt: Any, path: str) -> Prompt:
    if isinstance(prompt, str) and prompt:
        if is_unicode(prompt):
            return prompt
        raise InvalidRequest(
            f"{path} holds half of a UTF-16 surrogate pair; send whole characters.", param="prompt"
        )
    ids = isinstance(prompt, list) and bool(prompt)
    if ids and all(type(item) is int and 0 <= item <= INT32_MAX for item in prompt):
        return tuple(prompt)
    raise InvalidRequest(
        f"{path} is {shown(prompt)}; it must be a text or a list of token ids, and not empty.",
        param="prompt",
    )
