"""The bodies of `/v1/chat/completions` and `/v1/completions`.

Templates expect plain text as content, and a tool call's arguments as an object
(https://huggingface.co/docs/transformers/chat_extras); OpenAI sends parts, and arguments as JSON
within a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import (
    MAX_ALL_TOOL_CALLS,
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    MAX_PROMPTS,
    MAX_TEMPLATE_VARIABLES_CHARACTERS,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
    Budget,
    parse_json_text,
)
from trtllm_truss.protocols.fields import NonEmpty, Unsupported, check_length, invalid_request
from trtllm_truss.protocols.openai.answers import ChatShape, CompletionShape, OpenAICall
from trtllm_truss.protocols.openai.fields import (
    REFUSED_EXTENSIONS,
    UNUSED_EXTENSIONS,
    SharedFields,
    alternatives_of_engine,
    generation_arguments,
    read_body,
    stream_options,
)
from trtllm_truss.protocols.openai.tools import read_tool_use
from trtllm_truss.protocols.tool_use import NO_FORMATS, ModelFormats
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import ChatFormat, GenerationRequest
from trtllm_truss.text.tokenizer_files import ROLES
from trtllm_truss.validation import Strict, is_unicode, shown

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
"""Keys of the text, by the types of parts."""

_OBJECT = re.compile(r"[ \t\n\r]*\{")

ECHOED = frozenset(
    {
        *("annotations", "audio", "cache_control", "created", "createdAt", "created_at"),
        *("finish_reason", "id", "metadata", "model", "parsed", "provider_specific_fields"),
        *("reasoning_details", "status", "stop_reason", "thinking_blocks", "timestamp", "type"),
        *("usage", "weight"),
    }
)
"""Keys that clients echo or note in messages. They cannot change an answer, so they are ignored."""


class FunctionCall(Strict):
    """The function of a call. Ignores keys of clients, such as `parsed_arguments`."""

    model_config = ConfigDict(extra="ignore")

    name: NonEmpty
    arguments: str | dict[str, Any] | None = None


class ToolCall(Strict):
    """One call in an assistant's message. Ignores keys of clients."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: str | None = None
    function: FunctionCall


class Message(Strict):
    """One turn of a conversation, its content already plain text."""

    role: NonEmpty
    content: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(fail_fast=True, max_length=MAX_TOOL_CALLS)] | None
    ) = None
    tool_call_id: str | None = None
    prefix: bool = False


class _Conversation(Strict):
    messages: Annotated[list[Message], Field(fail_fast=True)]


def read_messages(messages: Sequence[Any]) -> tuple[list[dict[str, Any]], bool]:
    """Convert a conversation for chat templates; tell whether the answer continues its end.

    `developer` becomes `system`. `prefix` is Mistral's and DeepSeek's, `partial` Moonshot's.

    Raises:
        InvalidRequest: a message is malformed, or has content other than text.
    """
    plain = [_plain(message, f"messages[{place}]") for place, message in enumerate(messages)]
    try:
        conversation = _Conversation.model_validate({"messages": plain})
    except ValidationError as error:
        raise invalid_request(error, Message.model_fields) from None
    calls = [call for message in conversation.messages for call in message.tool_calls or ()]
    check_length("messages", calls, MAX_ALL_TOOL_CALLS, param="messages", unit="tool calls")
    *before, last = conversation.messages
    if any(message.prefix for message in before) or (last.prefix and last.role != "assistant"):
        raise InvalidRequest(
            "messages holds a prefix that is true; only the last message, if it is the "
            "assistant's, can be one.",
            param="messages",
        )
    budget = arguments_budget("messages")
    return [_for_template(message, budget) for message in conversation.messages], last.prefix


def _plain(message: Any, path: str) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {
        name: value for name, value in message.items() if value is not None and name not in ECHOED
    }
    refusal, reasoning = kept.pop("refusal", None), kept.pop("reasoning", None)
    if "partial" in kept:
        kept["prefix"] = kept.pop("partial")
    if isinstance(refusal, str) and refusal and not kept.get("content"):
        kept["content"] = refusal
    if isinstance(reasoning, str):
        kept.setdefault("reasoning_content", reasoning)
    if call := kept.pop("function_call", None):
        kept["tool_calls"] = [*(kept.get("tool_calls") or ()), {"function": call}]
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = join_parts(content, f"{path}.content", _TEXT_PARTS, param="messages")
    elif content is None and kept.get("role") != "assistant":
        raise InvalidRequest(f"{path}.content is missing.", param="messages")
    return kept


def join_parts(parts: Sequence[Any], path: str, keys: Mapping[str, str], *, param: str) -> str:
    """Join the parts of a content by line breaks.

    Args:
        path: its place, for errors.
        keys: the keys of the text, by the types of parts.
        param: the field of the request.

    Raises:
        InvalidRequest: there are too many parts, or one has no text.
    """
    check_length(path, parts, MAX_CONTENT_PARTS, param=param)
    texts = []
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(keys.get(kind, "")) if isinstance(kind, str) else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{path}[{place}] is of type {shown(kind)}; only parts of type {next(iter(keys))}, "
                "with their text, are read.",
                param=param,
            )
        texts.append(text)
    return "\n".join(texts)


def _for_template(message: Message, budget: Budget) -> dict[str, Any]:
    fields = message.model_dump(exclude_none=True, exclude={"prefix"})
    if message.role == "developer":
        fields["role"] = "system"
    if not fields.get("tool_calls", True):
        del fields["tool_calls"]
    for call in fields.get("tool_calls", ()):
        call.setdefault("type", "function")
        call["function"]["arguments"] = read_arguments(call["function"].get("arguments"), budget)
    return fields


def arguments_budget(param: str) -> Budget:
    """Return the limits of the arguments of all calls in a conversation.

    Args:
        param: the field that holds the conversation.
    """
    return Budget(" in arguments of calls", param)


def read_arguments(arguments: str | dict[str, Any] | None, budget: Budget) -> Any:
    """Parse a call's arguments; return malformed ones as text, so that the request goes on.

    Raises:
        InvalidRequest: the objects are too large together.
    """
    if not isinstance(arguments, str):
        return arguments or {}
    if not arguments:
        return {}
    if not _OBJECT.match(arguments):
        return arguments
    try:
        return parse_json_text(arguments, budget)
    except ValueError:
        return arguments


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
    """Return the variables of a chat template.

    Raises:
        InvalidRequest: a name has another meaning in templates, or the values are too long.
    """
    if not values:
        return {}  # the encoder below leaves itself to the garbage collector
    for name, remedy in _REFUSED_VARIABLES.items():
        if name in values:
            raise InvalidRequest(f"{_FIELD} holds {name}; {remedy}.", param=_FIELD)
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
    """Variables of the chat template beyond OpenAI's fields; the names are vLLM's."""

    add_generation_prompt: bool | None = Field(
        None, description="Begin the assistant's answer in the prompt; default: true."
    )
    continue_final_message: bool = Field(
        False, description="Continue the last message, which is the assistant's."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Further variables of the template, such as `enable_thinking`; at most "
        f"{MAX_TEMPLATE_VARIABLES_CHARACTERS:,} characters as JSON. Control tokens in them are "
        "plain text.",
    )


class ChatFields(ChatExtensions):
    """Fields of `/v1/chat/completions`."""

    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="The conversation, for the tokenizer's chat template; content is text, or "
        "parts of type text. `developer` means `system`."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description="The newer name of max_tokens; overrides it."
    )
    logprobs: bool = Field(False, description="Log probabilities of the answer's tokens.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Alternatives to report for each token; requires logprobs. More than 0, or in "
        "greedy decoding 1, needs an engine that reports them.",
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
        True, description="Allow several calls in one answer; false returns the first only."
    )
    reasoning_effort: NonEmpty | None = Field(
        None, description="Given to the chat template under this name."
    )
    include_reasoning: bool = Field(
        True, description="Return the reasoning; false leaves it out, and counts it all the same."
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
    "prediction": "a prediction changes only the speed of an answer",
    "service_tier": "the server has one tier",
    "verbosity": "only OpenAI's models know it",
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
        defaults: values for omitted fields, by the names of the predict body; then OpenAI's
            defaults apply.
        formats: the model's formats of tool calls and reasoning.
        top_is_chosen: report the chosen token as the one alternative, as LMI does.

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
    log_probs = alternatives_of_engine(fields, alternatives, top_is_chosen=top_is_chosen)
    messages, is_prefix = read_messages(fields.messages)
    if is_prefix:
        fields = fields.model_copy(update={"continue_final_message": True})
    use = read_tool_use(fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls)
    request = GenerationRequest(
        messages=messages,
        chat=chat_format(fields, str(messages[-1]["role"]), fields.reasoning_effort),
        log_probs=log_probs,
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
        shape=ChatShape(
            log_probs=alternatives is not None, chosen_is_top=alternatives != log_probs
        ),
        new_parser=new_parser,
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
        reasoning_effort: the value for the template; None for none.

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
    echo: bool = Field(
        False,
        description="Each choice begins with the prompt. With logprobs it has those of the prompt, "
        "which needs a CPU engine.",
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=5,
        description="Alternatives to report for each token. More than 0, or in greedy decoding 1, "
        "needs an engine that reports them.",
    )
    best_of: int | None = Field(None, ge=1, description="May only be equal to n.")


COMPLETION_REFUSED = {"suffix": Unsupported("insertion is not available", ("",))}

COMPLETION_UNUSED = {"user": SHARED_UNUSED["user"]}

_ALL_COMPLETION_REFUSED = {**REFUSED_EXTENSIONS, **COMPLETION_REFUSED}
_ALL_COMPLETION_UNUSED = {**UNUSED_EXTENSIONS, **COMPLETION_UNUSED}


def parse_completion(
    body: Mapping[str, Any], defaults: Mapping[str, Any], *, top_is_chosen: bool = False
) -> OpenAICall:
    """Parse a body of `/v1/completions`; arguments and errors are those of `parse_chat`."""
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
    log_probs = alternatives_of_engine(fields, fields.logprobs, top_is_chosen=top_is_chosen)
    if fields.echo and fields.logprobs is not None:
        log_probs = fields.logprobs
        # Callers who score a prompt cut one token off the end, lm_eval for example.
        arguments["ignore_eos"] |= fields.max_tokens <= 1
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
