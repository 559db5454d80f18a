"""The body of `/v1/messages` to a request: its fields, conversation, tools and output format.

Templates expect a tool's result as a message of its own and calls beside the text
(https://huggingface.co/docs/transformers/chat_extras); Anthropic has both as content blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import (
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    MAX_MODEL_CHARACTERS,
    MAX_TOOLS,
)
from trtllm_truss.protocols.fields import (
    Finite,
    Unsupported,
    Words,
    attribute_names,
    body_field,
    check_length,
    check_min_tokens,
    invalid_request,
    refuse_unsupported,
    request_arguments,
    schema_guide,
    with_defaults,
    with_request_fields,
)
from trtllm_truss.protocols.tool_use import NO_FORMATS, ModelFormats, NewParser, ToolUse, read_tool
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import ChatFormat, GenerationRequest, Guide
from trtllm_truss.validation import Strict, shown, shown_name


@with_request_fields("messages", without=("temperature", "top_p", "stop_sequences"))
class MessagesExtensions(Strict):
    """Fields beyond Anthropic's, and `top_k`."""


class MessagesFields(MessagesExtensions):
    """Fields of `/v1/messages`."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model",
        description="Echoed; one model is served, by any name. The name of an adapter chooses it.",
    )
    max_tokens: int = Field(
        ge=1, le=INT32_MAX, description="Limit of generated tokens; cut down to the context."
    )
    messages: Annotated[list[Any], Field(min_length=1, max_length=MAX_MESSAGES)] = Field(
        description="Turns by `user`, `assistant` and `system`; content is text, or blocks. A last "
        "one by `assistant` is continued."
    )
    system: Any = Field(None, description="The system prompt: text, or blocks of type `text`.")
    stop_sequences: Words = body_field("stop_words")
    stream: bool = Field(False, description="Server-sent events, the last one `message_stop`.")
    temperature: Finite = body_field("temperature", default=1.0, le=2)
    top_p: Finite = body_field("top_p", default=1.0)
    tools: list[Any] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description="Tools of the caller, with `name` and `input_schema`; see below.",
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
        description="`format` of type `json_schema`, by guided decoding; `effort`, given to the "
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
        defaults: values for omitted fields, by the names of the predict body.

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
        raise invalid_request(error, _KNOWN) from None


def check_keys(
    value: Mapping[str, Any], known: Collection[str], path: str, ignored: Collection[str] = ()
) -> None:
    """Refuse an unknown key of an object by its path.

    Raises:
        InvalidRequest: a key is neither known nor ignored.
    """
    for name in value:
        if name not in known and name not in ignored:
            raise InvalidRequest(
                f"{path}.{shown_name(name)} is not a field; the fields of {path} are "
                f"{', '.join(known)}.",
                param=field_of(path),
            )


def wrong(path: str, value: Any, wanted: str) -> InvalidRequest:
    """Build the error of a value within a field."""
    return InvalidRequest(f"{path} is {shown(value)}; it must be {wanted}.", param=field_of(path))


def field_of(path: str) -> str:
    """Return the field that holds a path such as ``messages[0].content``."""
    return path.partition("[")[0].partition(".")[0]


ECHOED = frozenset(
    {
        *("cache_control", "caller", "citations", "container", "diagnostics", "id", "model"),
        *("parsed_output", "signature", "stop_details", "stop_reason", "stop_sequence"),
        *("toolset_name", "type", "usage"),
    }
)
"""Keys of answers that clients echo in messages and blocks. They cannot change an answer."""

_ROLES = ("user", "assistant", "system")
_TEXTS = {"content", "reasoning_content"}
_PLAIN_TEXT = {"type", "text"}

Message = dict[str, Any]


def read_conversation(system: Any, messages: Sequence[Any]) -> list[Message]:
    """Convert a conversation for chat templates.

    Adjacent messages of one role become one, as in Anthropic's API.

    Raises:
        InvalidRequest: a message is malformed, has other content than text, tools and thinking, or
            is the last one and cannot be continued.
    """
    turns = _Turns()
    if system is not None and system != "":
        turns.read("system", system, "system")
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        if not isinstance(message, dict):
            raise wrong(path, message, "an object")
        check_keys(message, ("role", "content"), path, ECHOED)
        role = message.get("role")
        if role not in _ROLES:
            raise wrong(f"{path}.role", role, f"one of {', '.join(_ROLES)}")
        if message.get("content") is None:
            raise InvalidRequest(f"{path}.content is missing.", param="messages")
        turns.read(role, message["content"], f"{path}.content")
    conversation = turns.joined()
    if not conversation:
        raise wrong("messages", messages, "a list with some content")
    last = conversation[-1]
    if last["role"] == "assistant" and (
        "tool_calls" in last or not last.get("content", "").strip()
    ):
        raise InvalidRequest(
            "the last of messages is by the assistant and has no text at its end to continue; end "
            "messages with one by the user.",
            param="messages",
        )
    return conversation


class _Turns:
    """Collects the messages for the template, their texts in parts."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def read(self, role: str, content: Any, path: str) -> None:
        """Add the content of one message."""
        if isinstance(content, str):
            self._add_text(role, content)
            return
        readers = self._READERS[role]
        texts = None
        for block, kind, where in _blocks(content, path):
            if kind == "text":
                if texts is None:
                    texts = self._last(role).setdefault("content", [])
                texts.append(_text(block, where))
            elif kind in readers:
                texts = None
                readers[kind](self, block, where)
            else:
                kinds = ", ".join(("text", *readers))
                raise InvalidRequest(
                    f"{where} is of type {shown(kind)}; only blocks of type {kinds} are read in "
                    f"{'system' if role == 'system' else 'messages by ' + role}.",
                    param=field_of(path),
                )
        if not content and role == "assistant":
            self._last(role)

    def joined(self) -> list[Message]:
        """Return the messages."""
        for message in self._messages:
            for key in _TEXTS & message.keys():
                message[key] = "\n".join(message[key])
        return self._messages

    def _last(self, role: str) -> Message:
        """Return the last message, begun if it has another role."""
        if not self._messages or self._messages[-1]["role"] != role:
            self._messages.append({"role": role})
        return self._messages[-1]

    def _add_text(self, role: str, text: str, key: str = "content") -> None:
        self._last(role).setdefault(key, []).append(text)

    def _thinking(self, block: Message, path: str) -> None:
        check_keys(block, ("thinking",), path, ECHOED)
        self._add_text("assistant", _string(block, "thinking", path), "reasoning_content")

    def _redacted_thinking(self, block: Message, path: str) -> None:
        check_keys(block, ("data",), path, ECHOED)

    def _tool_use(self, block: Message, path: str) -> None:
        check_keys(block, ("name", "input"), path, ECHOED)
        arguments = block.get("input")
        if arguments is not None and not isinstance(arguments, dict):
            raise wrong(f"{path}.input", arguments, "an object")
        function = {"name": _string(block, "name", path), "arguments": arguments or {}}
        calls = self._last("assistant").setdefault("tool_calls", [])
        calls.append({"id": _string(block, "id", path), "type": "function", "function": function})

    def _tool_result(self, block: Message, path: str) -> None:
        check_keys(block, ("tool_use_id", "content", "is_error"), path, ECHOED)
        content, path_of_content = block.get("content"), f"{path}.content"
        if content is None or isinstance(content, str):
            text = content or ""
        else:
            texts = []
            for part, kind, where in _blocks(content, path_of_content):
                if kind != "text":
                    raise InvalidRequest(
                        f"{where} is of type {shown(kind)}; only blocks of type text are read in "
                        "results of tools.",
                        param="messages",
                    )
                texts.append(_text(part, where))
            text = "\n".join(texts)
        if block.get("is_error") and text[:5].lower() != "error":
            text = f"Error: {text}"
        id_ = _string(block, "tool_use_id", path)
        self._messages.append({"role": "tool", "tool_call_id": id_, "content": [text]})

    _READERS: ClassVar[Mapping[str, Mapping[str, Callable[[_Turns, Message, str], None]]]] = {
        "system": {},
        "user": {"tool_result": _tool_result},
        "assistant": {
            "thinking": _thinking,
            "redacted_thinking": _redacted_thinking,
            "tool_use": _tool_use,
        },
    }


def _blocks(content: Any, path: str) -> Iterator[tuple[Message, str, str]]:
    """Yield each block with its type and its path."""
    if not isinstance(content, list):
        raise wrong(path, content, "a string or a list of blocks")
    check_length(path, content, MAX_CONTENT_PARTS, param=field_of(path))
    for place, block in enumerate(content):
        where = f"{path}[{place}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str):
            raise wrong(where, block, "an object with a type")
        yield block, kind, where


def _text(block: Message, path: str) -> str:
    if block.keys() > _PLAIN_TEXT:
        check_keys(block, ("text",), path, ECHOED)
    return _string(block, "text", path)


def _string(block: Message, name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise wrong(f"{path}.{name}", value, "a string")
    return value


UNUSED_TOOL_KEYS = ("cache_control", "eager_input_streaming", "strict")
"""Keys of tools that are accepted without effect; `any` and `tool` are strict in any case."""

REFUSED_TOOL_KEYS = {
    "allowed_callers": Unsupported("only the model calls tools", (["direct"],)),
    "defer_loading": Unsupported("the model sees all tools", (False,)),
    "input_examples": Unsupported("state them in the description", ([],)),
}

_TOOL_KEYS = ("name", "description", "input_schema", "type")
_CHOICE_KEYS = ("type", "name", "disable_parallel_tool_use")
_CHOICES = ("auto", "any", "tool", "none")

_THINKING_KEYS = ("type", "budget_tokens", "display")
_SWITCHES = {"enabled": True, "disabled": False, "adaptive": None}
_SWITCH_VARIABLES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking: Qwen's and GLM's, DeepSeek's and Granite's."""

_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class Thinking(NamedTuple):
    """Settings of `thinking`.

    Attributes:
        variables: variables of the chat template.
        shown: include the thinking in the answer.
    """

    variables: Mapping[str, Any]
    shown: bool


def read_tool_use(
    tools: Sequence[Any] | None, choice: Mapping[str, Any] | None, *, parallel: bool
) -> ToolUse:
    """Read the tools of a request.

    Args:
        choice: the field `tool_choice`; None for `auto`.
        parallel: whether an answer may have several calls, if the choice leaves it open.

    Raises:
        InvalidRequest: a tool is malformed or of the server's, or the choice is unknown or names
            another tool.
    """
    described, offered = [], {}
    for place, tool in enumerate(tools or ()):
        path = f"tools[{place}]"
        function = _function(tool, path)
        described.append({"type": "function", "function": function})
        read = read_tool(function.get("name"), function["parameters"], path)
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
    """Read how the model thinks.

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
    """Return the guide of the output format, and the field that holds it.

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
        new_parser: makes a parser of thinking and tool calls; None for text.
        shows_thinking: whether the answer holds the thoughts.
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
        defaults: values for omitted fields, by the names of the predict body; then Anthropic's
            defaults apply.
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
    if not fields.tools:  # thoughts between calls may be longer together
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
