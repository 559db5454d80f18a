"""Convert the body of `/v1/messages` to a request: fields, tools and output format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_MESSAGES, MAX_MODEL_CHARACTERS, MAX_TOOLS
from trtllm_truss.protocols.conversation.blocks import read_conversation
from trtllm_truss.protocols.fields import (
    Finite,
    Unsupported,
    Words,
    attribute_names,
    body_field,
    check_keys,
    check_min_tokens,
    field_of,
    invalid_request,
    refuse_unsupported,
    request_arguments,
    schema_guide,
    with_defaults,
    with_request_fields,
    wrong,
)
from trtllm_truss.protocols.tool_use import NO_FORMATS, ModelFormats, NewParser, ToolUse, read_tool
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import ChatFormat, GenerationRequest, Guide
from trtllm_truss.validation import Strict, shown


@with_request_fields("messages", without=("temperature", "top_p", "stop_sequences"))
class MessagesExtensions(Strict):
    """Fields beyond Anthropic's, and `top_k`."""


class MessagesFields(MessagesExtensions):
    """Fields of `/v1/messages`."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model",
        description="Echoed; default: `model_name` in config.yaml. One model is served under any "
        "name. An adapter's name selects the adapter.",
    )
    max_tokens: int = Field(
        ge=1, le=INT32_MAX, description="Maximum number of generated tokens; capped to the context."
    )
    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="Turns by `user`, `assistant` and `system`; content is text or blocks. If "
        "the last turn is by `assistant`, it is continued."
    )
    system: Any = Field(None, description="The system prompt: text, or blocks of type `text`.")
    stop_sequences: Words = body_field("stop_words")
    stream: bool = Field(False, description="Server-sent events; the last one is `message_stop`.")
    temperature: Finite = body_field("temperature", default=1.0, le=2)
    top_p: Finite = body_field("top_p", default=1.0)
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="The caller's tools, with `name` and `input_schema`; see below.",
    )
    tool_choice: dict[str, Any] | None = Field(
        None,
        description="Type `auto`, `any`, `tool` with a `name`, or `none`; "
        "`disable_parallel_tool_use`. Default: `auto`.",
    )
    thinking: dict[str, Any] | None = Field(
        None,
        description="Type `enabled`, `disabled` or `adaptive`; `display`. See below.",
    )
    output_config: dict[str, Any] | None = Field(
        None,
        description="`format` of type `json_schema`, by guided decoding; `effort`, passed to the "
        "chat template as `reasoning_effort`.",
    )
    output_format: dict[str, Any] | None = Field(
        None, description="The older name of `output_config.format`."
    )


REFUSED = {
    "compaction": Unsupported("nothing is compacted"),
    "container": Unsupported("code is not executed"),
    "context_management": Unsupported(
        "conversations are not edited",
        ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    ),
    "fallbacks": Unsupported("one model is served", ([],)),
    "mcp_servers": Unsupported("tools are called by the client", ([],)),
    "service_tier": Unsupported("the server has one tier", ("auto", "standard_only")),
    "speed": Unsupported("the server has one speed", ("standard",)),
    "thread": Unsupported("answers are not stored; send all messages"),
}

UNUSED = {
    "anthropic_version": "the server has one version of the API",
    "cache_control": "the engine reuses equal prefixes automatically",
    "diagnostics": "the engine reuses equal prefixes automatically",
    "inference_geo": "the deployment decides where it runs",
    "metadata": "nothing is stored about callers",
    "user_profile_id": "nothing is stored about callers",
    "workspace_id": "nothing is stored about callers",
}

_KNOWN = [*MessagesFields.model_fields, *REFUSED, *UNUSED]


def read_fields(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> MessagesFields:
    """Validate the fields of a body. A field that is null counts as omitted.

    Args:
        defaults: values for omitted fields, by the predict body's field names.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of range.
    """
    sent = {}
    for name, value in body.items():
        if name in UNUSED or (value is None and name in _KNOWN):
            continue
        if name in REFUSED:
            refuse_unsupported(name, value, REFUSED)
        else:
            sent[name] = value
    values = with_defaults(
        sent, defaults, MessagesFields, "messages", without=("max_tokens", "stream")
    )
    try:
        return MessagesFields.model_validate(values)
    except ValidationError as error:
        raise invalid_request(error, _KNOWN, REFUSED) from None


UNUSED_TOOL_KEYS = ("cache_control", "eager_input_streaming")
"""Keys of tools that are accepted but have no effect."""

REFUSED_TOOL_KEYS = {
    "allowed_callers": Unsupported("only the model calls tools", (["direct"],)),
    "defer_loading": Unsupported("the model sees all tools", (False,)),
    "input_examples": Unsupported("state them in the description", ([],)),
}

_TOOL_KEYS = ("name", "description", "input_schema", "strict", "type")
_CHOICE_KEYS = ("type", "name", "disable_parallel_tool_use")
_CHOICES = ("auto", "any", "tool", "none")

_THINKING_KEYS = ("type", "budget_tokens", "display")
_SWITCHES = {"enabled": True, "disabled": False, "adaptive": None}
_SWITCH_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that switch thinking: Qwen's and GLM's, DeepSeek's and Granite's."""

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Thinking(NamedTuple):
    """Settings of `thinking`.

    Attributes:
        variables: variables of the chat template.
        shown: include the thinking in the response.
    """

    variables: Mapping[str, Any]
    shown: bool


def read_tool_use(
    tools: Sequence[Any] | None, choice: Mapping[str, Any] | None, *, parallel: bool
) -> ToolUse:
    """Read the tools of a request.

    Args:
        choice: the field `tool_choice`; None for `auto`.
        parallel: a response may contain several calls, if the choice does not decide it.

    Raises:
        InvalidRequest: a tool is malformed or a server tool, or the choice is unknown or names
            another tool.
    """
    described, offered = [], {}
    for place, tool in enumerate(tools or ()):
        path = f"tools[{place}]"
        function = _function(tool, path)
        described.append({"type": "function", "function": function})
        strict = tool.get("strict")
        read = read_tool(function.get("name"), function["parameters"], path, strict)
        offered[read.name] = read
    choice = choice or {"type": "auto"}
    check_keys(choice, _CHOICE_KEYS, "tool_choice")
    kind, name = choice.get("type"), choice.get("name")
    if kind not in _CHOICES:
        raise wrong("tool_choice.type", kind, f"one of {', '.join(_CHOICES)}")
    if kind == "tool" and name not in list(offered):
        raise wrong("tool_choice.name", name, "the name of one of tools")
    if kind == "any" and not offered:
        raise InvalidRequest("tool_choice.type is any; send tools.", param="tool_choice")
    one_only = choice.get("disable_parallel_tool_use")
    if one_only is None:
        one_only = not parallel
    if not isinstance(one_only, bool):
        raise wrong("tool_choice.disable_parallel_tool_use", one_only, "true or false")
    if kind == "none" or not offered:
        return ToolUse()
    return ToolUse(
        tools=described,
        offered=tuple(tool for tool in offered.values() if kind != "tool" or tool.name == name),
        is_forced=kind in ("any", "tool"),
        parallel=not one_only,
    )


def _function(tool: Any, path: str) -> dict[str, Any]:
    """Return the description of a tool for the chat template."""
    if not isinstance(tool, dict):
        raise wrong(path, tool, "an object")
    if (tool.get("type") or "custom") != "custom":
        raise InvalidRequest(
            f"{path} is of type {shown(tool['type'])}; only tools of type custom are supported, "
            "with a name and an input_schema.",
            param="tools",
        )
    given = {name: value for name, value in tool.items() if value is not None}
    for name in [name for name in given if name in REFUSED_TOOL_KEYS]:
        refuse_unsupported(name, given.pop(name), REFUSED_TOOL_KEYS, within=f"{path}.")
    check_keys(given, (*_TOOL_KEYS, *UNUSED_TOOL_KEYS), path)
    if "input_schema" not in given:
        raise InvalidRequest(f"{path}.input_schema is missing.", param="tools")
    if not isinstance(given["input_schema"], dict):
        raise wrong(f"{path}.input_schema", given["input_schema"], "a JSON schema, an object")
    if not isinstance(given.get("description", ""), str):
        raise wrong(f"{path}.description", given["description"], "a string")
    function = {name: given[name] for name in ("name", "description") if name in given}
    return {**function, "parameters": given["input_schema"]}


def read_thinking(
    thinking: Mapping[str, Any] | None, output_config: Mapping[str, Any] | None
) -> Thinking:
    """Read the thinking settings.

    Args:
        thinking: the field `thinking`; None leaves it to the chat template.
        output_config: the field `output_config`, for its `effort`.

    Raises:
        InvalidRequest: a key is unknown or of the wrong type.
    """
    variables: dict[str, Any] = {}
    effort = (output_config or {}).get("effort")
    if effort is not None:
        if effort not in _EFFORTS:
            raise wrong("output_config.effort", effort, f"one of {', '.join(_EFFORTS)}")
        variables["reasoning_effort"] = effort
    if thinking is None:
        return Thinking(variables, shown=True)
    check_keys(thinking, _THINKING_KEYS, "thinking")
    kind, display = thinking.get("type"), thinking.get("display") or "summarized"
    if not isinstance(kind, str) or kind not in _SWITCHES:
        raise wrong("thinking.type", kind, f"one of {', '.join(_SWITCHES)}")
    if display not in ("summarized", "omitted"):
        raise wrong("thinking.display", display, "summarized or omitted")
    if (switch := _SWITCHES[kind]) is not None:
        variables.update(dict.fromkeys(_SWITCH_VARIABLES, switch))
    return Thinking(variables, shown=display != "omitted")


def _check_budget(thinking: Mapping[str, Any], max_tokens: int) -> None:
    budget = thinking.get("budget_tokens")
    if thinking.get("type") == "enabled" and isinstance(budget, int) and budget >= max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens is {budget}; it must be below max_tokens, {max_tokens}.",
            param="thinking",
        )


def read_output_format(
    output_config: Mapping[str, Any] | None, output_format: Mapping[str, Any] | None
) -> tuple[Guide | None, str]:
    """Return the guide of the output format, and the field that contains it.

    Args:
        output_format: its older form, the format alone.

    Raises:
        InvalidRequest: the format is malformed, or given twice.
    """
    config = output_config or {}
    check_keys(config, ("effort", "format"), "output_config")
    chosen, path = config.get("format"), "output_config.format"
    if output_format is not None:
        if chosen is not None:
            raise InvalidRequest(
                "output_config.format and output_format are both given; send the former.",
                param="output_format",
            )
        chosen, path = output_format, "output_format"
    if chosen is None:
        return None, path
    if not isinstance(chosen, dict):
        raise wrong(path, chosen, "an object")
    check_keys(chosen, ("type", "schema"), path)
    if chosen.get("type") != "json_schema":
        raise wrong(f"{path}.type", chosen.get("type"), "json_schema")
    return schema_guide(chosen.get("schema"), f"{path}.schema", field_of(path)), path


_NAMES = attribute_names("messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall:
    """A parsed body.

    Attributes:
        model: the caller's name of the model; echoed.
        new_parser: creates a parser of thinking and tool calls; None for text.
        shows_thinking: the response includes the thinking.
    """

    request: GenerationRequest
    model: str
    stream: bool
    new_parser: NewParser | None = None
    shows_thinking: bool = True


def parse_messages(
    body: Mapping[str, Any], defaults: Mapping[str, Any], formats: ModelFormats = NO_FORMATS
) -> MessagesCall:
    """Parse a body of `/v1/messages`.

    Args:
        defaults: values for omitted fields, by the predict body's field names; Anthropic's defaults
            apply after them.
        formats: the model's formats of tool calls and reasoning.

    Raises:
        InvalidRequest: a field is missing, unknown, unsupported, of the wrong type or out of
            range, or fields contradict each other.
    """
    fields = read_fields(body, defaults)
    arguments = request_arguments(fields, "messages")
    check_min_tokens(arguments["sampling"].min_tokens, fields.max_tokens)
    messages = read_conversation(fields.system, fields.messages)
    parallel = defaults.get("parallel_tool_calls", True)
    use = read_tool_use(fields.tools, fields.tool_choice, parallel=parallel)
    thinking = read_thinking(fields.thinking, fields.output_config)
    if not fields.tools:  # several thoughts between calls may be longer in total
        _check_budget(fields.thinking or {}, fields.max_tokens)
    guide, guide_name = read_output_format(fields.output_config, fields.output_format)
    continues = messages[-1]["role"] == "assistant"
    request = GenerationRequest(
        messages=messages,
        chat=ChatFormat(
            add_generation_prompt=not continues,
            continue_final_message=continues,
            variables=thinking.variables,
        ),
        max_tokens=fields.max_tokens,
        max_tokens_given=False,  # Anthropic's limit may exceed the context
        guide=guide,
        model=fields.model,
        running_usage=fields.stream,  # the first event has the tokens of the prompt
        names={**_NAMES, "guide": guide_name},
        **arguments,
    )
    request, new_parser = formats.apply(request, use)
    return MessagesCall(
        request=request,
        model=fields.model,
        stream=fields.stream,
        new_parser=new_parser,
        shows_thinking=thinking.shown,
    )
