"""`messages` and `tools`, converted for chat templates.

Templates expect plain text as content, and a tool call's arguments as an object
(https://huggingface.co/docs/transformers/chat_extras); OpenAI sends parts, and arguments as JSON
within a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import NonEmpty, check_length, invalid_request
from trtllm_truss.protocols.limits import MAX_CONTENT_PARTS, MAX_TOOL_CALLS
from trtllm_truss.validation import Strict, shown

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
_WITHOUT_MEANING = ("refusal", "annotations", "audio", "function_call")
"""Keys of an answer that callers send back as it was; only null or empty ones pass."""


class FunctionCall(Strict):
    """The function of a call, with its arguments as JSON text."""

    name: NonEmpty
    arguments: str


class ToolCall(Strict):
    """One call in an assistant's message."""

    id: str | None = None
    type: str = "function"
    index: int | None = None
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
    return [_for_template(message, place) for place, message in enumerate(conversation.messages)]


def read_tools(tools: Sequence[Any] | None) -> list[Mapping[str, Any]] | None:
    """Return the tools unchanged; None for an empty list.

    Raises:
        InvalidRequest: one is not a function with a name.
    """
    for place, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if not named or tool.get("type") != "function":
            raise InvalidRequest(
                f"tools[{place}] is {shown(tool)}; it must be of type function, with the "
                "function's name.",
                param="tools",
            )
    return list(tools) if tools else None


def _plain(message: Any, path: str) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {
        name: value
        for name, value in message.items()
        if value is not None and (value or name not in _WITHOUT_MEANING)
    }
    content = kept.get("content")
    if isinstance(content, list):
        check_length(f"{path}.content", content, MAX_CONTENT_PARTS, param="messages")
        parts = [_part(part, f"{path}.content[{place}]") for place, part in enumerate(content)]
        kept["content"] = "\n".join(parts)
    elif content is None and not kept.get("tool_calls"):
        raise InvalidRequest(f"{path}.content is missing.", param="messages")
    return kept


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(_TEXT_PARTS.get(kind, "")) if isinstance(kind, str) else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{path} is of type {shown(kind)}; only parts of type text, with their text, are read.",
            param="messages",
        )
    return text


def _for_template(message: Message, place: int) -> dict[str, Any]:
    fields = message.model_dump(exclude_none=True)
    if message.role == "developer":
        fields["role"] = "system"
    for number, call in enumerate(fields.get("tool_calls", ())):
        call.pop("index", None)
        path = f"messages[{place}].tool_calls[{number}].function.arguments"
        call["function"]["arguments"] = _arguments(call["function"]["arguments"], path)
    return fields


def _arguments(text: str, path: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"{path} is not JSON; it must be an object, written as a text.", param="messages"
        ) from None
