"""Messages of chat completions, which predict and `/invocations` also accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from trtllm_truss.conversation import Turn
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_TOOL_CALLS
from trtllm_truss.protocols.conversation.turns import OMITTED, Turns, join_parts
from trtllm_truss.protocols.fields import NonEmpty, invalid_request, is_private
from trtllm_truss.validation import Strict

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
"""The key that contains the text, by type of part."""

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought")
"""Names used by other servers; the first one present is used."""

_REASONING_PARTS = {
    **dict.fromkeys(("reasoning", "reasoning.text", "reasoning_text"), "text"),
    **{"reasoning.summary": "summary", "thinking": "thinking"},
}
_REASONING_LISTS = ("reasoning_details", "thinking_blocks")
"""Keys with a list of parts, from OpenRouter and LiteLLM, which repeat the text of the others."""

ECHOED = frozenset(
    {
        *("annotations", "audio", "cache_control", "created", "createdAt", "created_at"),
        *("finish_reason", "id", "metadata", "model", "parsed", "provider_specific_fields"),
        *("status", "stop_reason", "timestamp", "type", "usage", "weight"),
    }
)
"""Keys that clients echo or add in messages.

They have no effect on the output, so they are ignored.
"""


class FunctionCall(Strict):
    """The function of a call. Clients' own keys, such as `parsed_arguments`, are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: NonEmpty
    arguments: Any = None


class ToolCall(Strict):
    """One call in an assistant's message. Clients' own keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = None
    type: str | None = None
    function: FunctionCall


class Message(Strict):
    """One message, its content already plain text."""

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


def read_messages(messages: Sequence[Any]) -> tuple[list[Turn], bool]:
    """Read a conversation; return it and whether the response continues its last message.

    `developer` becomes `system`, and `function` becomes `tool`. `prefix` is Mistral's and
    DeepSeek's key, `partial` Moonshot's.

    Raises:
        InvalidRequest: a message is malformed, or has content other than text.
    """
    plain = [_plain(message, f"messages[{place}]") for place, message in enumerate(messages)]
    try:
        conversation = _Conversation.model_validate({"messages": plain})
    except ValidationError as error:
        raise invalid_request(error, Message.model_fields) from None
    *before, last = conversation.messages
    if any(message.prefix for message in before) or (last.prefix and last.role != "assistant"):
        raise InvalidRequest(
            "messages holds a prefix that is true; only the last message, if it is the "
            "assistant's, can be one.",
            param="messages",
        )
    turns = Turns("messages")
    for message in conversation.messages:
        _read(message, turns)
    return turns.finish(), last.prefix


_ROLES = {"developer": "system", "function": "tool"}


def _plain(message: Any, path: str) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {
        name: value
        for name, value in message.items()
        if value is not None and name not in ECHOED and not is_private(name)
    }
    if isinstance(role := kept.get("role"), str):
        kept["role"] = role = _ROLES.get(role, role)
    _resolve_names(kept)
    content = kept.get("content")
    if isinstance(content, list):
        if role == "assistant":
            texts, content = _reasoning_of(content)
            for text in texts:
                kept.setdefault("reasoning_content", text)
        notes = OMITTED if role == "tool" else None
        kept["content"] = join_parts(content, f"{path}.content", _TEXT_PARTS, notes)
    elif content is None and role == "tool":
        kept["content"] = ""
    elif content is None and role != "assistant":
        raise InvalidRequest(f"{path}.content is missing.", param="messages")
    return kept


def _resolve_names(message: dict[str, Any]) -> None:
    """Replace other servers' and older clients' names of a key."""
    refusal = message.pop("refusal", None)
    if isinstance(refusal, str) and refusal and not message.get("content"):
        message["content"] = refusal
    if "partial" in message:
        message["prefix"] = message.pop("partial")
    reasoning = [message.pop(name) for name in _REASONING_KEYS if name in message]
    for name in _REASONING_LISTS:
        parts = message.pop(name, None)
        if isinstance(parts, list) and not any(reasoning):
            reasoning += _reasoning_of(parts)[0]
    if reasoning:
        message["reasoning_content"] = next(filter(None, reasoning), reasoning[0])
    if call := message.pop("function_call", None):
        message["tool_calls"] = [*(message.get("tool_calls") or ()), {"function": call}]


def _reasoning_of(parts: list[Any]) -> tuple[list[str], list[Any]]:
    """Divide parts into reasoning, as one text or None, and the others.

    Mistral's API returns reasoning as such parts.
    """
    texts = []
    others = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(_REASONING_PARTS[kind]) if kind in _REASONING_PARTS else None
        if isinstance(text, list):
            text = "\n".join(
                each["text"]
                for each in text
                if isinstance(each, dict) and isinstance(each.get("text"), str)
            )
        if isinstance(text, str):
            texts.append(text)
        else:
            others.append(part)
    return ["\n".join(texts)] if texts else [], others


def _read(message: Message, turns: Turns) -> None:
    """Add a message as a turn of its own."""
    if message.role == "tool":
        turns.result(message.tool_call_id, message.content or "", message.name)
        return
    turns.begin(message.role, name=message.name, tool_call_id=message.tool_call_id)
    if message.reasoning_content:
        turns.reasoning(message.reasoning_content)
    if message.content is not None:
        turns.text(message.content)
    for call in message.tool_calls or ():
        turns.call(call.function.name, call.function.arguments, call.id)
