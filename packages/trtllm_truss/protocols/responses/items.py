"""`input`, converted for chat templates.

A message of a template holds what one turn of the model wrote, which Responses divides into items:
reasoning, text and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import check_length
from trtllm_truss.protocols.limits import MAX_MESSAGES
from trtllm_truss.protocols.openai.messages import arguments_budget, join_parts, read_arguments
from trtllm_truss.validation import is_unicode, shown, shown_name

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
        value: the field `input`.
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
            f"{path} refers to an item, but answers are not stored; send the item itself.",
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
    function = {"name": _string(item, "name", path), "arguments": arguments}
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
    "function_call": (_read_call, {"call_id", "name", "arguments"}),
    "function_call_output": (_read_result, {"call_id", "name", "output"}),
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
