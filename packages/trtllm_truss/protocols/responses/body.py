"""The body of `/v1/responses`.

A message of a chat template holds one turn of the model, which Responses divides into items:
reasoning, text and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_MESSAGES, MAX_TOOLS, json_bytes
from trtllm_truss.protocols.fields import Unsupported, check_length
from trtllm_truss.protocols.openai.body import SHARED_UNUSED, ChatExtensions, chat_format
from trtllm_truss.protocols.openai.fields import (
    FLAT_PATH,
    REFUSED_EXTENSIONS,
    UNUSED_EXTENSIONS,
    StreamOptions,
    generation_arguments,
    read_body,
    read_response_format,
)
from trtllm_truss.protocols.openai.tools import (
    Origins,
    custom_arguments,
    flat_name,
    read_flat_tool_use,
)
from trtllm_truss.protocols.tool_use import (
    NO_FORMATS,
    ModelFormats,
    NewParser,
    arguments_budget,
    join_parts,
    read_arguments,
)
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.validation import Strict, is_unicode, shown, shown_name

Message = dict[str, Any]
Item = Mapping[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_TEXTS = {"content", "reasoning_content"}
"""Keys of texts, which are collected in parts."""

_REASONING_PARTS = {"reasoning_text": "text"}
ECHOED = frozenset(
    {
        *("async", "async_", "caller", "created_by", "encrypted_content", "id", "namespace"),
        *("parsed_arguments", "phase", "provider_data", "provider_specific_fields", "status"),
        "summary",
    }
)
"""Keys of output items that clients echo. They cannot change an answer, so they are ignored."""


def read_items(value: Any, instructions: str | None) -> list[Message]:
    """Convert `input`. Adjacent items of the assistant become one message.

    Args:
        instructions: put before a system message that begins the input, or in one of their own.

    Raises:
        InvalidRequest: an item is malformed, has content other than text, or refers to a store.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise _wrong("input", value, "a text, or a list of items that is not empty")
    check_length("input", value, MAX_MESSAGES, param="input")
    messages: list[Message] = []
    for place, item in enumerate(value):
        _read_item(item, f"input[{place}]", messages)
    budget = arguments_budget("input")
    for message in messages:
        for key in _TEXTS & message.keys():
            message[key] = "\n".join(message[key])
        for call in message.get("tool_calls", ()):
            function = call["function"]
            function["arguments"] = read_arguments(function["arguments"], budget)
    if instructions:
        if messages and messages[0]["role"] == "system":
            messages[0]["content"] = f"{instructions}\n\n{messages[0]['content']}"
        else:
            messages.insert(0, {"role": "system", "content": instructions})
    if not messages:
        raise _wrong("input", value, "a list with a message")
    return messages


def _read_item(item: Any, path: str, messages: list[Message]) -> None:
    if not isinstance(item, dict):
        raise _wrong(path, item, "an item, an object")
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "item_reference":
        raise InvalidRequest(
            f"{path} refers to an item, but answers are not stored; send the item itself. "
            "The AI SDK does with providerOptions: {openai: {store: false}}.",
            param="input",
        )
    if not isinstance(kind, str) or kind not in _READERS:
        raise _wrong(f"{path}.type", kind, f"one of {', '.join(_READERS)}")
    read, keys = _READERS[kind]
    for key, value in item.items():
        if value is not None and key != "type" and key not in keys | ECHOED:
            raise InvalidRequest(
                f"{path}.{shown_name(key)} is not read in an item of type {kind}; leave it out.",
                param="input",
            )
    read(item, path, messages)


def _read_message(item: Item, path: str, messages: list[Message]) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _wrong(f"{path}.role", role, f"one of {', '.join(_ROLES)}")
    content = _content(item, "content", path)
    if role == "assistant":
        _add_text(_assistant(messages), "content", content)
    else:
        messages.append({"role": _ROLES[role], "content": [content]})


def _read_call(item: Item, path: str, messages: list[Message]) -> None:
    arguments = item.get("arguments")
    if isinstance(arguments, str):
        _check_unicode(arguments, f"{path}.arguments")
    elif arguments is not None and not isinstance(arguments, dict):
        raise _wrong(f"{path}.arguments", arguments, "a text that holds a JSON object")
    _add_call(item, path, arguments, messages)


def _read_custom_call(item: Item, path: str, messages: list[Message]) -> None:
    _add_call(item, path, custom_arguments(_content(item, "input", path)), messages)


def _add_call(item: Item, path: str, arguments: Any, messages: list[Message]) -> None:
    name, namespace = _string(item, "name", path), item.get("namespace")
    if namespace is not None:
        namespace = _string(item, "namespace", path)
    function = {"name": flat_name(name, namespace), "arguments": arguments}
    call = {"id": _string(item, "call_id", path), "type": "function", "function": function}
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _read_result(item: Item, path: str, messages: list[Message]) -> None:
    output = _content(item, "output", path)
    result = {"role": "tool", "tool_call_id": _string(item, "call_id", path), "content": [output]}
    if item.get("name") is not None:
        result["name"] = _string(item, "name", path)
    messages.append(result)


def _read_reasoning(item: Item, path: str, messages: list[Message]) -> None:
    if item.get("content"):
        _add_text(_assistant(messages), "reasoning_content", _content(item, "content", path))


_READERS: dict[str, tuple[Callable[[Item, str, list[Message]], None], set[str]]] = {
    "message": (_read_message, {"role", "content"}),
    "function_call": (_read_call, {"call_id", "name", "namespace", "arguments"}),
    "function_call_output": (_read_result, {"call_id", "name", "output"}),
    "custom_tool_call": (_read_custom_call, {"call_id", "name", "namespace", "input"}),
    "custom_tool_call_output": (_read_result, {"call_id", "name", "output"}),
    "reasoning": (_read_reasoning, {"content"}),
}
"""The reader of each type of item, and the keys that it reads."""


def _assistant(messages: list[Message]) -> Message:
    """Return the assistant's message at the end, which may be a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _add_text(message: Message, key: str, text: str) -> None:
    """Add a part of a text; empty ones at its beginning do not count."""
    parts = message.setdefault(key, [])
    if parts == [""]:
        parts.clear()
    parts.append(text)


def _content(item: Item, key: str, path: str) -> str:
    value, path = item.get(key), f"{path}.{key}"
    if isinstance(value, list):
        parts = _REASONING_PARTS if item.get("type") == "reasoning" else _TEXT_PARTS
        value = join_parts(value, path, parts, param="input")
    if not isinstance(value, str):
        raise _wrong(path, value, "a text, or a list of parts with text")
    return _check_unicode(value, path)


def _string(item: Item, key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise _wrong(f"{path}.{key}", value, "a text that is not empty")
    return _check_unicode(value, f"{path}.{key}")


def _check_unicode(text: str, path: str) -> str:
    if not is_unicode(text):
        raise InvalidRequest(
            f"{path} holds half of a UTF-16 surrogate pair; send whole characters.", param="input"
        )
    return text


def _wrong(path: str, value: Any, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{path} is {shown(value)}; it must be {wanted}.", param="input")


LOG_PROBS = "message.output_text.logprobs"

Summary = Literal["auto", "concise", "detailed"]


class Reasoning(Strict):
    """`reasoning`. Summaries are not written."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class TextOptions(Strict):
    """`text`. The verbosity has no effect."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesFields(ChatExtensions):
    """Fields of `/v1/responses`."""

    input: Any = Field(
        description="A text, or items of type `message`, `function_call`, `function_call_output`, "
        "`custom_tool_call`, `custom_tool_call_output` and `reasoning`; content is text, or parts "
        "of it. `developer` means `system`."
    )
    instructions: str | None = Field(None, description="The system message before the input.")
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Limit of generated tokens, reasoning included; at most, and by default, the "
        "rest of the context.",
    )
    text: TextOptions = Field(
        default_factory=TextOptions,
        description="`format`: `text`, `json_object`, `json_schema`, or beyond OpenAI's `regex` "
        "and `grammar`. `verbosity` has no effect.",
    )
    reasoning: Reasoning = Field(
        default_factory=Reasoning,
        description="`effort` is given to the chat template as `reasoning_effort`. `summary` has "
        "no effect: reasoning is returned in full.",
    )
    include: list[
        Literal[
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url",
            "file_search_call.results",
            "message.input_image.image_url",
            "web_search_call.action.sources",
            "web_search_call.results",
        ]
    ] = Field(
        default_factory=list,
        max_length=64,
        description=f"`{LOG_PROBS}`: log probabilities of the text's tokens, without tools or "
        "reasoning only. OpenAI's other values have no effect.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description=f"Alternatives to report for each token; requires `{LOG_PROBS}`. More than 0, "
        "or in greedy decoding 1, needs an engine that reports them.",
    )
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Tools of the model: `function`; `custom`, with free text as input; and "
        "`namespace`, whose tools the model knows as `<namespace>__<name>`.",
    )
    tool_choice: Any = Field(
        None,
        description="`auto`, `none`, `required`, a named tool, or `allowed_tools`; default: "
        "`auto`.",
    )
    parallel_tool_calls: bool = Field(
        True, description="Allow several calls in one answer; false returns the first only."
    )
    stream: bool = Field(False, description="Server-sent events.")
    stream_options: StreamOptions | None = Field(
        None, description="`include_obfuscation` may only be false; the usage is always included."
    )
    metadata: dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Echoed in the response; texts of at most 512 characters, as OpenAI's.",
    )


REFUSED = {
    "background": Unsupported("answers are not stored", (False,)),
    "context_management": Unsupported("the input is not compacted", ([],)),
    "conversation": Unsupported("answers are not stored; send the earlier items in input"),
    "max_tokens": Unsupported("the limit is max_output_tokens"),
    "moderation": Unsupported("moderation is not available"),
    "n": Unsupported("a response is one answer", (1,)),
    "previous_response_id": Unsupported("answers are not stored; send the earlier items in input"),
    "prompt": Unsupported("prompt templates are not stored; send instructions and input"),
    "response_format": Unsupported("the format is text.format"),
    "truncation": Unsupported(
        "items are not dropped; truncate_prompt_tokens keeps the end of the prompt", ("disabled",)
    ),
}

UNUSED = {
    **SHARED_UNUSED,
    "access_programs": "the server has no programs",
    "background_options": "answers are not stored",
    "image": "images are not read",
    "max_tool_calls": "it limits built-in tools, of which there are none",
    "service_tier": "the server has one tier, `default` in the response",
    "store": "answers are not stored; `store` is false in the response",
}

_ALL_REFUSED = {**REFUSED_EXTENSIONS, **REFUSED}
_ALL_UNUSED = {**UNUSED_EXTENSIONS, **UNUSED}

_FUNCTION = {"type": "function", "description": None, "parameters": None, "strict": None}
"""The keys of a function that a response always has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall:
    """A parsed body.

    Attributes:
        echo: the fields of the request that the response has as well.
        alternatives: see `ChatShape`; not None only without `new_parser`.
        new_parser: makes the parser of reasoning and tool calls; None for text.
        origins: the tools behind the functions that the model calls.
    """

    request: GenerationRequest
    echo: Mapping[str, Any]
    stream: bool
    alternatives: int | None
    new_parser: NewParser | None
    origins: Origins


def parse_response(
    body: Mapping[str, Any], defaults: Mapping[str, Any], formats: ModelFormats = NO_FORMATS
) -> ResponsesCall:
    """Parse a body of `/v1/responses`.

    Args:
        defaults: values for omitted fields, by the names of the predict body; then OpenAI's
            defaults apply.
        formats: the model's formats of tool calls and reasoning.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of
            range, or fields contradict each other.
    """
    fields = read_body(ResponsesFields, body, defaults, refused=_ALL_REFUSED, unused=_ALL_UNUSED)
    messages = read_items(fields.input, fields.instructions)
    use, origins = read_flat_tool_use(
        fields.tools, fields.tool_choice, parallel=fields.parallel_tool_calls
    )
    alternatives = _alternatives(fields)
    arguments = generation_arguments(
        fields,
        max_tokens=fields.max_output_tokens or fields.max_tokens,
        max_tokens_given=fields.max_output_tokens is not None,
        names={
            "messages": "input",
            "log_probs": "top_logprobs",
            "max_tokens": "max_output_tokens",
            "guide": FLAT_PATH,
        },
        text_format=read_response_format(fields.text.format, flat=True),
    )
    request = GenerationRequest(
        messages=messages,
        chat=chat_format(fields, str(messages[-1]["role"]), fields.reasoning.effort),
        log_probs=alternatives,
        **arguments,
    )
    request, new_parser = formats.apply(request, use)
    if alternatives is not None and new_parser is not None:
        raise InvalidRequest(
            f"include has {LOG_PROBS}, which is not available beside tools or reasoning; leave it "
            "out.",
            param="include",
        )
    return ResponsesCall(
        request=request,
        echo=_echo(fields),
        stream=fields.stream,
        alternatives=alternatives,
        new_parser=new_parser,
        origins=origins,
    )


def _alternatives(fields: ResponsesFields) -> int | None:
    if LOG_PROBS in fields.include:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequest(
            f"top_logprobs is {fields.top_logprobs}, but include lacks {LOG_PROBS}; add it.",
            param="top_logprobs",
        )
    return None


def _echo(fields: ResponsesFields) -> dict[str, Any]:
    """Return the fields of the request that the response has as well.

    Raises:
        InvalidRequest: one cannot be encoded as JSON.
    """
    text = fields.text
    echo = {
        "model": fields.model,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": None,
        "metadata": fields.metadata,
        "parallel_tool_calls": fields.parallel_tool_calls,
        "reasoning": {"effort": fields.reasoning.effort, "summary": None},
        "temperature": fields.temperature,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": fields.top_p,
        "tools": [
            {**_FUNCTION, **tool} if tool["type"] == "function" else tool
            for tool in fields.tools or ()
        ],
        "tool_choice": fields.tool_choice or "auto",
        "text": {
            "format": text.format or {"type": "text"},
            "verbosity": text.verbosity or "medium",
        },
    }
    for name, value in echo.items():
        try:
            json_bytes(value)
        except ValueError:
            raise InvalidRequest(
                f"{name} holds half of a UTF-16 surrogate pair, or a number that is out of range; "
                "send whole characters and finite numbers.",
                param=name,
            ) from None
    return echo
