"""Messages, tools and reasoning of a conversation, for every protocol.

Chat templates expect plain text as content, and a tool call's arguments as an object
(https://huggingface.co/docs/transformers/chat_extras); OpenAI sends parts, and arguments as JSON
within a text. `read_messages` converts its form, which predict has too.

`ModelFormats` are chosen once for the model. `ToolUse` is what one request may call; `apply` turns
both into the arguments of a `GenerationRequest` and the parser of its answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import (
    MAX_ALL_TOOL_CALLS,
    MAX_CONTENT_PARTS,
    MAX_TOOL_CALLS,
    Budget,
    parse_json_text,
)
from trtllm_truss.protocols.fields import (
    NonEmpty,
    check_length,
    check_size,
    invalid_request,
    schema_text,
)
from trtllm_truss.requests import ChatFormat, GenerationRequest, Guide
from trtllm_truss.tool_calls.catalog import TOOL_FORMATS
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.parser import OutputParser
from trtllm_truss.tool_calls.reasoning import ReasoningFormat
from trtllm_truss.tool_calls.tool_format import CallGuide, ToolFormat, write_call
from trtllm_truss.validation import Strict, shown

Turn = dict[str, Any]
logger = logging.getLogger(__name__)
NewParser = Callable[[], OutputParser]

_NEUTRAL = TOOL_FORMATS["json"]
_LACKS_SYSTEM_ROLE = re.compile(r"raise_exception\(['\"]System role")
_TESTS_NONE = re.compile(r"content(['\"]\])? is (not )?none")
_JOINS_ARGUMENTS = re.compile(r"arguments(['\"]\])?\s*[+~]")
"""The use of arguments as text in DeepSeek's templates."""

_WANTS_SHORT_IDS = re.compile(r"length\s*!=\s*9\b")
"""The test of Mistral's templates for the ids of calls."""

_DESCRIPTION = """\
You can call these functions, each described by a JSON schema:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments exactly in this form:
{call}

The results follow in the next message. Answer directly if no function is needed."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions of one request.

    Attributes:
        tools: OpenAI's descriptions, for the chat template; None for none.
        offered: the functions that may be called.
        is_forced: whether the answer must be a call.
        is_named: whether the caller named the function of that call.
        parallel: whether it may have several.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    offered: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_named: bool = False
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """The formats of a model, and the limits of its chat template.

    Attributes:
        tools: the format of calls; None leaves calls in the text.
        reasoning: the format of reasoning; None leaves it in the text.
        template: the source of the chat template.
        warns: log the first request whose calls stay in the text.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    template: str = "tools tool_calls"
    warns: bool = False

    def apply(
        self, request: GenerationRequest, use: ToolUse
    ) -> tuple[GenerationRequest, NewParser | None]:
        """Add tools and reasoning to a request.

        Returns:
            The request, and what makes a parser for each of its answers; None if these are text.

        Raises:
            InvalidRequest: the schemas of a forced call are too long.
        """
        assert request.messages is not None
        messages = self._messages(request.messages, use)
        if use.is_forced:
            return self._forced(replace(request, messages=messages), use)
        if not use.tools and self.reasoning is None:
            return replace(request, messages=messages), None
        tools = self.tools if use.offered else None
        shown: set[str] = set()
        for chosen in (tools, self.reasoning):
            shown |= chosen.special_tokens if chosen else set()
        reasoning = self.reasoning
        chat = replace(request.chat, tools=use.tools, reasoning=reasoning)
        if request.guide and reasoning and not chat.continue_final_message:
            chat = replace(chat, answer_prefix=reasoning.answer)
        request = replace(
            request, messages=messages, chat=chat, shown_special_tokens=frozenset(shown)
        )
        if use.offered and tools is None and self.warns:
            _warn_of_text()
        if tools is None and reasoning is None:
            return request, None
        return request, partial(OutputParser, tools, reasoning, use.offered, parallel=use.parallel)

    def _forced(
        self, request: GenerationRequest, use: ToolUse
    ) -> tuple[GenerationRequest, NewParser]:
        """Force a call by a guide: one JSON schema, after a prefix."""
        form, name = self.tools or _NEUTRAL, "the schema of tools"
        check_size([[tool.name, tool.parameters] for tool in use.offered], name, "tools")
        guides = form.guides(use.offered, parallel=use.parallel)
        if len(guides) != 1:  # engines take one schema and one prefix
            form = _NEUTRAL
            guides = form.guides(use.offered, parallel=use.parallel)
        (guide,) = guides
        schema = schema_text(guide.schema, name, "tools")
        reasoning = self.reasoning
        prefix = guide.prefix or (reasoning.answer if reasoning else "")
        chat: ChatFormat = replace(
            request.chat, tools=use.tools, answer_prefix=prefix, reasoning=reasoning
        )
        request = replace(
            request,
            chat=chat,
            shown_special_tokens=reasoning.special_tokens if reasoning else frozenset(),
            guide=Guide("json_schema", schema),
            names={**request.names, "guide": "tool_choice"},
        )
        before = reasoning.before(form) if reasoning else None
        return request, partial(OutputParser, form, before, use.offered, parallel=use.parallel)

    def _messages(self, messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[Turn]:
        """Adapt messages to the chat template.

        A template without tools gets them as text: their description in the system message, calls
        as the model would write them, results in messages of the user.
        """
        adapted = [dict(message) for message in messages]
        if "tool_calls" not in self.template:
            adapted = self._calls_as_text(adapted)
        elif _has_trait(_JOINS_ARGUMENTS, self.template):
            _arguments_as_text(adapted)
        if _has_trait(_WANTS_SHORT_IDS, self.template):
            _shorten_ids(adapted)
        absent = None if _has_trait(_TESTS_NONE, self.template) else ""
        for message in adapted:
            message.setdefault("content", absent)
        if use.tools and "tools" not in self.template:
            self._describe(use.tools, adapted)
        return adapted

    def _describe(self, tools: Sequence[Mapping[str, Any]], messages: list[Turn]) -> None:
        example = self._write_call("FUNCTION", '{"ARGUMENT": VALUE}')
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _DESCRIPTION.format(tools=listed, call=example)
        role = "user" if _has_trait(_LACKS_SYSTEM_ROLE, self.template) else "system"
        if messages[0]["role"] == role:
            begin, end = str(messages[0]["content"]), text
            if role == "user":
                begin, end = end, begin
            messages[0]["content"] = f"{begin}\n\n{end}"
        else:
            messages.insert(0, {"role": role, "content": text})

    def _calls_as_text(self, messages: Sequence[Turn]) -> list[Turn]:
        for message in messages:
            if calls := message.pop("tool_calls", None):
                written = [
                    self._write_call(call["function"]["name"], _json(call["function"]["arguments"]))
                    for call in calls
                ]
                message["content"] = "\n".join(filter(None, [message.get("content"), *written]))
        adapted: list[Turn] = []
        for are_results, turns in groupby(messages, lambda message: message["role"] == "tool"):
            if are_results:
                lines = (
                    line
                    for result in turns
                    for line in ("<tool_response>", result.get("content", ""), "</tool_response>")
                )
                adapted.append({"role": "user", "content": "\n".join(lines)})
            else:
                adapted += turns
        return adapted

    def _write_call(self, name: str, arguments: str) -> str:
        form = self.tools or _NEUTRAL
        guides: list[CallGuide] = form.guides([Tool(name, {})], parallel=True)
        guide = (guides or _NEUTRAL.guides([Tool(name, {})], parallel=True))[0]
        return write_call(guide, name, arguments)


@cache
def _warn_of_text() -> None:
    logger.warning(
        "a request offers functions with tool_choice auto; the model's calls stay in the text of "
        "its answer, because their format is unknown. Name it in serving.tool_parser. Further "
        "requests of this kind are not logged."
    )


NO_FORMATS = ModelFormats()
"""Calls and reasoning stay in the text."""


def read_tool(name: Any, parameters: Any, path: str) -> Tool:
    """Check a function.

    Args:
        parameters: the JSON schema of its arguments; None for none.
        path: the field that holds it, for errors.

    Raises:
        InvalidRequest: the name or the schema is unusable.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,256}", name):
        raise InvalidRequest(
            f"{path}.name must be a string of at most 256 letters, digits and . _ -; rename the "
            "function.",
            param="tools",
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(f"{path}.parameters must be a JSON schema, an object.", param="tools")
    return Tool(name, parameters or {})


@lru_cache(64)
def _has_trait(trait: re.Pattern[str], template: str) -> bool:
    """Return whether a template has a trait; templates are long, and searched once."""
    return trait.search(template) is not None


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _arguments_as_text(messages: Sequence[Turn]) -> None:
    for message in messages:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _json(arguments)}}
                for call in calls
                for arguments in [call["function"]["arguments"]]
            ]


def _shorten_ids(messages: Sequence[Turn]) -> None:
    """Replace ids of calls by nine letters and digits; equal ids stay equal."""
    for message in messages:
        for holder, key in (
            (message, "tool_call_id"),
            *((call, "id") for call in message.get("tool_calls", ())),
        ):
            if (id_ := holder.get(key)) and not re.fullmatch(r"[0-9A-Za-z]{9}", id_):
                holder[key] = hashlib.sha256(id_.encode()).hexdigest()[:9]


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
