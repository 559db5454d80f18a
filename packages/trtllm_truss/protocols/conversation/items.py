"""Items of OpenAI's Responses.

One turn of the model is one turn of a conversation; Responses divides it into items of reasoning,
text and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtllm_truss.conversation import Turn
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_MESSAGES
from trtllm_truss.protocols.conversation.turns import OMITTED, Turns, join_parts
from trtllm_truss.protocols.fields import check_length, is_private, wrong
from trtllm_truss.protocols.tool_origins import custom_arguments, flat_name
from trtllm_truss.validation import is_unicode, shown_name

Item = Mapping[str, Any]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_REASONING_PARTS = {"reasoning_text": "text", "text": "text"}
_SUMMARY_PARTS = {"summary_text": "text", "text": "text"}
ECHOED = frozenset(
    {
        *("async", "async_", "caller", "created_by", "encrypted_content", "id", "namespace"),
        *("parsed_arguments", "phase", "provider_data", "provider_specific_fields", "status"),
    }
)
"""Keys of output items that clients echo.

They have no effect on the output, so they are ignored.
"""


def read_items(value: Any, instructions: str | None) -> list[Turn]:
    """Read `input`. Adjacent assistant items become one turn.

    Args:
        instructions: prepended to a system message that starts the input, or added as one.

    Raises:
        InvalidRequest: an item is malformed, has content other than text, or refers to a store.
    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise wrong("input", value, "a text, or a non-empty list of items")
    check_length("input", value, MAX_MESSAGES, param="input")
    turns = Turns("input", merges=("assistant",))
    for place, item in enumerate(value):
        _read_item(item, f"input[{place}]", turns)
    conversation = turns.finish()
    if instructions:
        if conversation and conversation[0]["role"] == "system":
            conversation[0]["content"] = f"{instructions}\n\n{conversation[0]['content']}"
        else:
            conversation.insert(0, {"role": "system", "content": instructions})
    if not conversation:
        raise wrong("input", value, "a list with a message")
    return conversation


def _read_item(item: Any, path: str, turns: Turns) -> None:
    if not isinstance(item, dict):
        raise wrong(path, item, "an item, an object")
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "item_reference":
        raise InvalidRequest(
            f"{path} refers to an item, but answers are not stored; send the item itself. "
            "The AI SDK does with providerOptions: {openai: {store: false}}.",
            param="input",
        )
    if not isinstance(kind, str) or kind not in READERS:
        raise wrong(f"{path}.type", kind, f"one of {', '.join(READERS)}")
    read, keys = READERS[kind]
    for key, value in item.items():
        if value is not None and key not in {"type", *keys, *ECHOED} and not is_private(key):
            raise InvalidRequest(
                f"{path}.{shown_name(key)} is not read in an item of type {kind}; leave it out.",
                param="input",
            )
    read(item, path, turns)


def _read_message(item: Item, path: str, turns: Turns) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise wrong(f"{path}.role", role, f"one of {', '.join(_ROLES)}")
    content = _content(item, "content", path, _TEXT_PARTS)
    turns.begin(_ROLES[role])
    turns.text(content)


def _read_call(item: Item, path: str, turns: Turns) -> None:
    arguments = item.get("arguments")
    if isinstance(arguments, str):
        _check_unicode(arguments, f"{path}.arguments")
    _add_call(item, path, arguments, turns)


def _read_custom_call(item: Item, path: str, turns: Turns) -> None:
    _add_call(item, path, custom_arguments(_content(item, "input", path, _TEXT_PARTS)), turns)


def _add_call(item: Item, path: str, arguments: Any, turns: Turns) -> None:
    name, namespace = _string(item, "name", path), item.get("namespace")
    if namespace is not None:
        namespace = _string(item, "namespace", path)
    turns.begin("assistant")
    turns.call(flat_name(name, namespace), arguments, _string(item, "call_id", path))


def _read_result(item: Item, path: str, turns: Turns) -> None:
    name = None if item.get("name") is None else _string(item, "name", path)
    output = _content(item, "output", path, _TEXT_PARTS, OMITTED)
    turns.result(_string(item, "call_id", path), output, name)


def _read_reasoning(item: Item, path: str, turns: Turns) -> None:
    """Read reasoning: its text, or its summary, which is all that some clients keep."""
    for key, parts in (("content", _REASONING_PARTS), ("summary", _SUMMARY_PARTS)):
        if item.get(key):
            turns.begin("assistant")
            turns.reasoning(_content(item, key, path, parts))
            return


READERS: dict[str, tuple[Callable[[Item, str, Turns], None], set[str]]] = {
    "message": (_read_message, {"role", "content"}),
    "function_call": (_read_call, {"call_id", "name", "namespace", "arguments"}),
    "function_call_output": (_read_result, {"call_id", "name", "output"}),
    "custom_tool_call": (_read_custom_call, {"call_id", "name", "namespace", "input"}),
    "custom_tool_call_output": (_read_result, {"call_id", "name", "output"}),
    "reasoning": (_read_reasoning, {"content", "summary"}),
}
"""The reader of each type of item, and the keys that it reads."""


def _content(
    item: Item,
    key: str,
    path: str,
    parts: Mapping[str, str],
    notes: Mapping[str, str] | None = None,
) -> str:
    value, path = item.get(key), f"{path}.{key}"
    if isinstance(value, list):
        value = join_parts(value, path, parts, notes)
    if not isinstance(value, str):
        raise wrong(path, value, "a text, or a list of parts with text")
    return _check_unicode(value, path)


def _string(item: Item, key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise wrong(f"{path}.{key}", value, "a non-empty string")
    return _check_unicode(value, f"{path}.{key}")


def _check_unicode(text: str, path: str) -> str:
    if not is_unicode(text):
        raise InvalidRequest(
            f"{path} contains a lone surrogate, which is not valid Unicode; send whole characters.",
            param="input",
        )
    return text
