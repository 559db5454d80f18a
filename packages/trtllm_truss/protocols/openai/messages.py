"""`messages` and `tools`, converted for chat templates.

Templates expect plain text as content, and a tool call's arguments as an object
(https://huggingface.co/docs/transformers/chat_extras); OpenAI sends parts, and arguments as JSON
within a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import NonEmpty, check_length, invalid_request
from trtllm_truss.protocols.json_body import Budget, parse_json_text
from trtllm_truss.protocols.limits import MAX_ALL_TOOL_CALLS, MAX_CONTENT_PARTS, MAX_TOOL_CALLS
from trtllm_truss.validation import Strict, shown

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
"""Keys of the text, by the types of parts."""

_OBJECT = re.compile(r"[ \t\n\r]*\{")

ECHOED = frozenset(
    {
        *("annotations", "audio", "cache_control", "id", "parsed", "provider_specific_fields"),
        *("reasoning_details", "thinking_blocks"),
    }
)
"""Keys of answers that clients echo. They cannot change an answer, so they are ignored."""


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


class _Conversation(Strict):
    messages: Annotated[list[Message], Field(fail_fast=True)]


def read_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert a conversation for chat templates. `developer` becomes `system`.

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
    budget = arguments_budget("messages")
    return [_for_template(message, budget) for message in conversation.messages]


def _plain(message: Any, path: str) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {
        name: value for name, value in message.items() if value is not None and name not in ECHOED
    }
    refusal, reasoning = kept.pop("refusal", None), kept.pop("reasoning", None)
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
        parts: the content.
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
    fields = message.model_dump(exclude_none=True)
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
    """Return the object, or the text that is none: a model's broken call ends no conversation.

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
