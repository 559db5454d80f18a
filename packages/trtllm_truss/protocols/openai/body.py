"""The bodies of `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import (
    MAX_MESSAGES,
    MAX_PROMPTS,
    MAX_TEMPLATE_VARIABLES_CHARACTERS,
    MAX_TOOLS,
)
from trtllm_truss.protocols.conversation.chat import read_messages
from trtllm_truss.protocols.fields import NonEmpty, Unsupported, check_length
from trtllm_truss.protocols.openai.answers import ChatShape, CompletionShape, OpenAICall
from trtllm_truss.protocols.openai.fields import (
    REFUSED_EXTENSIONS,
    UNUSED_EXTENSIONS,
    SharedFields,
    generation_arguments,
    read_body,
    stream_options,
)
from trtllm_truss.protocols.openai.tools import read_tool_use
from trtllm_truss.protocols.tool_use import NO_FORMATS, ModelFormats
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import ChatFormat, GenerationRequest
from trtllm_truss.text.tokenizer_parts import ROLES
from trtllm_truss.validation import is_unicode, shown

_FIELD = "chat_template_kwargs"
_REFUSED_VARIABLES = {
    **dict.fromkeys(
        ("messages", "tools", "add_generation_prompt", "continue_final_message"),
        "send it as a field of its own",
    ),
    **dict.fromkeys(ROLES, "the tokenizer sets it"),
    **dict.fromkeys(("raise_exception", "strftime_now"), "it is a function of chat templates"),
}
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def template_variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables for the chat template.

    Raises:
        InvalidRequest: a name has another meaning in templates, or the values are too long.
    """
    if not values:
        return {}  # the encoder below leaves itself to the garbage collector
    for name, remedy in _REFUSED_VARIABLES.items():
        if name in values:
            raise InvalidRequest(f"{_FIELD} contains {name}; {remedy}.", param=_FIELD)
    characters = 0
    for part in _ENCODER.iterencode(values):  # lazily: they can be megabytes
        characters += len(part)
        if characters > MAX_TEMPLATE_VARIABLES_CHARACTERS:
            raise InvalidRequest(
                f"{_FIELD} has more than {MAX_TEMPLATE_VARIABLES_CHARACTERS} characters as JSON; "
                "shorten it.",
                param=_FIELD,
            )
    return dict(values)


class ChatExtensions(SharedFields):
    """Variables of the chat template beyond OpenAI's fields, by vLLM's names."""

    add_generation_prompt: bool | None = Field(
        None, description="Start the assistant's turn in the prompt; default: true."
    )
    continue_final_message: bool = Field(
        False, description="Continue the last message, which must be the assistant's."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Further template variables, such as `enable_thinking`; at most "
        f"{MAX_TEMPLATE_VARIABLES_CHARACTERS:,} characters as JSON. Control tokens in them "
        "are plain text.",
    )


class ChatFields(ChatExtensions):
    """Fields of `/v1/chat/completions`."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="The conversation, for the tokenizer's chat template; content is text or "
        "parts of type text. `developer` means `system`."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="The newer name of max_tokens; overrides it."
    )
    logprobs: bool = Field(False, description="Log probabilities of the generated tokens.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Alternatives to report per token; requires logprobs. Values above 0 (above "
        "1 in greedy decoding) need an engine that reports alternatives.",
    )
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Functions that the model may call; see below.",
    )
    tool_choice: Any = Field(
        None,
        description="`auto`, `none`, `required`, a named function, or `allowed_tools`; default: "
        "`auto`.",
    )
    parallel_tool_calls: bool = Field(
        True, description="Allow several calls in one response; false returns only the first."
    )
    reasoning_effort: NonEmpty | None = Field(
        None, description="Passed to the chat template under this name."
    )
    include_reasoning: bool = Field(
        True, description="Return the reasoning; false omits it, but still counts it."
    )


CHAT_REFUSED = {
    "add_special_tokens": Unsupported("the chat template writes them", (False,)),
    "audio": Unsupported("answers are text"),
    "modalities": Unsupported("answers are text", (["text"],)),
    "chat_template": Unsupported("the tokenizer's own is used"),
    "documents": Unsupported("send them in a message", ([],)),
    "echo": Unsupported("messages are not repeated", (False,)),
    "function_call": Unsupported("tools and tool_choice have replaced it", ("auto", "none")),
    "enable_thinking": Unsupported("chat_template_kwargs holds it"),
    "functions": Unsupported("tools have replaced it", ([],)),
    "moderation": Unsupported("moderation is not available"),
    "reasoning": Unsupported("reasoning_effort sets the effort"),
    "thinking": Unsupported("chat_template_kwargs holds the template's own switch"),
    "web_search_options": Unsupported("web search is not available"),
}

SHARED_UNUSED = {
    **dict.fromkeys(
        ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        "the engine reuses equal prefixes automatically",
    ),
    **dict.fromkeys(("safety_identifier", "user"), "nothing is stored about callers"),
}

CHAT_UNUSED = {
    **SHARED_UNUSED,
    **dict.fromkeys(("metadata", "store"), "answers are not stored"),
    "prediction": "a prediction only affects the speed",
    "service_tier": "the server has one tier",
    "verbosity": "only OpenAI's models use it",
}

_ALL_CHAT_REFUSED = {**REFUSED_EXTENSIONS, **CHAT_REFUSED}
_ALL_CHAT_UNUSED = {**UNUSED_EXTENSIONS, **CHAT_UNUSED}


def parse_chat(
    body: Mapping[str, Any],
    defaults: Mapping[str, Any],
    formats: ModelFormats = NO_FORMATS,
    *,
    top_is_chosen: bool = False,
) -> OpenAICall:
    """Parse a body of `/v1/chat/completions`.

    Args:
        defaults: values for omitted fields, by the predict body's field names; OpenAI's defaults
            apply after them.
        formats: the model's formats of tool calls and reasoning.
        top_is_chosen: report the chosen token as the only alternative, as LMI does.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of
            range, or fields contradict each other.
    """
    fields = read_body(
        ChatFields, body, defaults, refused=_ALL_CHAT_REFUSED, unused=_ALL_CHAT_UNUSED
    )
    limits = ("max_completion_tokens", "max_tokens")
    limit = next((name for name in limits if body.get(name) is not None), None)
    alternatives = _alternatives(fields)
    messages, is_prefix = read_messages(fields.messages)
    if is_prefix:
        fields = fields.model_copy(update={"continue_final_message": True})
    use = read_tool_use(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls)
    request = GenerationRequest(
        messages=messages,
        chat=chat_format(fields, str(messages[-1]["role"]), fields.reasoning_effort),
        log_probs=alternatives,
        top_is_chosen=top_is_chosen,
        **generation_arguments(
            fields,
            max_tokens=fields.max_completion_tokens or fields.max_tokens,
            max_tokens_given=limit is not None,
            names={"log_probs": "top_logprobs", "max_tokens": limit or "max_tokens"},
        ),
    )
    request, new_parser = formats.apply(request, use)
    return OpenAICall(
        requests=(request,),
        model=fields.model,
        stream=fields.stream,
        include_usage=stream_options(fields).include_usage,
        shape=ChatShape(alternatives=alternatives),
        new_parser=new_parser,
        forces_call=use.is_forced,
        names_function=use.is_named,
        include_reasoning=fields.include_reasoning,
    )


def _alternatives(fields: ChatFields) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest(
            f"top_logprobs is {fields.top_logprobs}, but logprobs is false; set logprobs to true.",
            param="top_logprobs",
        )
    return (fields.top_logprobs or 0) if fields.logprobs else None


def chat_format(fields: ChatExtensions, last_role: str, reasoning_effort: str | None) -> ChatFormat:
    """Return the arguments of the chat template.

    Args:
        reasoning_effort: value for the template; None for none.

    Raises:
        InvalidRequest: fields contradict each other.
    """
    continues = fields.continue_final_message
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message are both true; choose one.",
            param="continue_final_message",
        )
    if continues and last_role != "assistant":
        raise InvalidRequest(
            f"continue_final_message is true, but the last message is by {shown(last_role)}; end "
            "messages with one by the assistant.",
            param="continue_final_message",
        )
    variables = template_variables(fields.chat_template_kwargs)
    if reasoning_effort is not None:
        variables.setdefault("reasoning_effort", reasoning_effort)
    begins = fields.add_generation_prompt
    return ChatFormat(
        add_generation_prompt=not continues if begins is None else begins,
        continue_final_message=continues,
        variables=variables,
    )


Prompt = str | tuple[int, ...]


class CompletionExtensions(SharedFields):
    """Prompt options beyond OpenAI's fields, by vLLM's names."""

    add_special_tokens: bool = Field(
        True, description="Add special tokens such as BOS to a text prompt."
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
        description="Maximum number of generated tokens; 0 with `echo` returns the prompt.",
    )
    echo: bool = Field(
        False,
        description="Prefix each choice with the prompt. With logprobs this includes the "
        "prompt's log probabilities, which only CPU engines support.",
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="Alternatives to report per token. Values above 0 (above 1 in greedy "
        "decoding) need an engine that reports alternatives.",
    )
    best_of: int | None = Field(None, ge=1, description="May only be equal to n.")


COMPLETION_REFUSED = {"suffix": Unsupported("insertion is not available", ("",))}

COMPLETION_UNUSED = {"user": SHARED_UNUSED["user"]}

_ALL_COMPLETION_REFUSED = {**REFUSED_EXTENSIONS, **COMPLETION_REFUSED}
_ALL_COMPLETION_UNUSED = {**UNUSED_EXTENSIONS, **COMPLETION_UNUSED}


def parse_completion(
    body: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    top_is_chosen: bool = False,
    context_tokens: int = INT32_MAX,
) -> OpenAICall:
    """Parse a body of `/v1/completions`; arguments and errors are those of `parse_chat`.

    Args:
        context_tokens: context of the engine; ids of longer prompts are not checked, because their
            length is refused.
    """
    fields = read_body(
        CompletionFields,
        body,
        defaults,
        refused=_ALL_COMPLETION_REFUSED,
        unused=_ALL_COMPLETION_UNUSED,
    )
    _check_agreement(fields)
    arguments = generation_arguments(
        fields,
        max_tokens=fields.max_tokens,
        max_tokens_given=body.get("max_tokens") is not None,
        names={"log_probs": "logprobs"},
    )
    if fields.echo and fields.logprobs is not None:
        # Callers that score a prompt, such as lm_eval, cut one token off the end.
        arguments["ignore_eos"] |= fields.max_tokens <= 1
    requests = tuple(
        GenerationRequest(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_ids=None if isinstance(prompt, str) else prompt,
            add_special_tokens=fields.add_special_tokens,
            echo=fields.echo,
            log_probs=fields.logprobs,
            top_is_chosen=top_is_chosen,
            **arguments,
        )
        for prompt in _prompts(
            fields.prompt,
            context_tokens if arguments["truncate_prompt"] is None else INT32_MAX,
        )
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


def _prompts(prompt: Any, longest: int) -> list[Prompt]:
    """Return the prompts of any of the four accepted forms.

    Args:
        longest: see `token_ids`.
    """
    alone = isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is int
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
        _prompt(item, "prompt" if alone else f"prompt[{place}]", longest)
        for place, item in enumerate(prompts)
    ]


def _prompt(prompt: Any, path: str, longest: int) -> Prompt:
    if isinstance(prompt, str) and prompt:
        if is_unicode(prompt):
            return prompt
        raise InvalidRequest(
            f"{path} contains a lone surrogate, which is not valid Unicode; send whole characters.",
            param="prompt",
        )
    if isinstance(prompt, list) and prompt:
        return token_ids(prompt, path, "prompt", longest)
    raise InvalidRequest(
        f"{path} is {shown(prompt)}; it must be a text or a list of token ids, and not empty.",
        param="prompt",
    )


def token_ids(
    values: list[Any], path: str, param: str, longest: int = INT32_MAX
) -> tuple[int, ...]:
    """Return a list of token ids as a tuple.

    Args:
        longest: above this length the values are not checked, because the length is refused.

    Raises:
        InvalidRequest: it contains other values.
    """
    if len(values) > longest:
        return tuple(values)
    if set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= INT32_MAX:
        return tuple(values)  # takes a tenth of the time of the loop below
    for place, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= INT32_MAX:
            raise InvalidRequest(
                f"{path}[{place}] is {shown(value)}; it must be a token id, an integer from 0 to "
                f"{INT32_MAX}.",
                param=param,
            )
    return ()
