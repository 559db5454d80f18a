"""Content blocks of Anthropic's Messages.

A turn has calls next to its text, and each result has a turn of its own; Anthropic represents both
as blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trtllm_truss.conversation import Turn
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_CONTENT_PARTS
from trtllm_truss.protocols.conversation.turns import OMITTED, Turns
from trtllm_truss.protocols.fields import check_keys, check_length, field_of, wrong
from trtllm_truss.validation import shown

ECHOED = frozenset(
    {
        *("cache_control", "caller", "citations", "container", "diagnostics", "id", "model"),
        *("parsed_output", "signature", "stop_details", "stop_reason", "stop_sequence"),
        *("toolset_name", "type", "usage"),
    }
)
"""Keys of responses that clients echo in messages and blocks. They have no effect on the output."""

_ROLES = ("user", "assistant", "system")
_PLAIN_TEXT = {"type", "text"}
_RESULT = "tool_result"

Block = dict[str, Any]


def read_conversation(system: Any, messages: Sequence[Any]) -> list[Turn]:
    """Read a conversation.

    Adjacent messages of the same role become one turn, as in Anthropic's API.

    Raises:
        InvalidRequest: a message is malformed, has content other than text, tools and thinking, or
            is the last one and cannot be continued.
    """
    turns = Turns("messages", merges=_ROLES)
    if system is not None and system != "":
        _read_content("system", system, "system", turns)
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
        _read_content(role, message["content"], f"{path}.content", turns)
    conversation = turns.finish()
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


def _read_content(role: str, content: Any, path: str, turns: Turns) -> None:
    """Read the content of one message. Results come first, since calls precede the message."""
    if isinstance(content, str):
        turns.begin(role)
        turns.text(content)
        return
    readers = _READERS[role]
    blocks = [*_blocks(content, path)]
    for block, kind, where in sorted(blocks, key=lambda block: block[1] != _RESULT):
        if kind == "text":
            turns.begin(role)
            turns.text(_text(block, where))
        elif kind in readers:
            if kind != _RESULT:
                turns.begin(role)
            readers[kind](block, where, turns)
        else:
            kinds = ", ".join(("text", *readers))
            raise InvalidRequest(
                f"{where} is of type {shown(kind)}; only blocks of type {kinds} are read in "
                f"{'system' if role == 'system' else 'messages by ' + role}.",
                param=field_of(path),
            )
    if not blocks and role == "assistant":
        turns.begin(role)


def _read_thinking(block: Block, path: str, turns: Turns) -> None:
    check_keys(block, ("thinking",), path, ECHOED)
    turns.reasoning(_string(block, "thinking", path))


def _read_redacted_thinking(block: Block, path: str, turns: Turns) -> None:
    check_keys(block, ("data",), path, ECHOED)


def _read_call(block: Block, path: str, turns: Turns) -> None:
    check_keys(block, ("name", "input"), path, ECHOED)
    turns.call(_string(block, "name", path), block.get("input"), _string(block, "id", path))


def _read_result(block: Block, path: str, turns: Turns) -> None:
    check_keys(block, ("tool_use_id", "content", "is_error"), path, ECHOED)
    content = block.get("content")
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        parts = _blocks(content, f"{path}.content")
        text = "\n".join(_result_text(part, kind, where) for part, kind, where in parts)
    if block.get("is_error") and text[:5].lower() != "error":
        text = f"Error: {text}"
    turns.result(_string(block, "tool_use_id", path), text)


def _result_text(block: Block, kind: str, path: str) -> str:
    """Return the text of a block in a result, or words that replace it."""
    if kind == "text":
        return _text(block, path)
    if kind == "tool_reference":
        return f"[tool {_string(block, 'tool_name', path)}]"
    if kind == "search_result":
        check_keys(block, ("source", "title", "content"), path, ECHOED)
        found = [_text(part, where) for part, _, where in _blocks(block.get("content"), path)]
        return "\n".join([_string(block, "title", path), _string(block, "source", path), *found])
    source = block.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return _string(source, "data", f"{path}.source")
    if kind in OMITTED:
        return OMITTED[kind]
    raise InvalidRequest(
        f"{path} is of type {shown(kind)}; only blocks of type text are read in results of tools.",
        param="messages",
    )


_READERS: Mapping[str, Mapping[str, Callable[[Block, str, Turns], None]]] = {
    "system": {},
    "user": {_RESULT: _read_result},
    "assistant": {
        "thinking": _read_thinking,
        "redacted_thinking": _read_redacted_thinking,
        "tool_use": _read_call,
    },
}
"""The readers of blocks other than text, by role and type."""


def _blocks(content: Any, path: str) -> Iterator[tuple[Block, str, str]]:
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


def _text(block: Block, path: str) -> str:
    if block.keys() > _PLAIN_TEXT:
        check_keys(block, ("text",), path, ECHOED)
    return _string(block, "text", path)


def _string(block: Block, name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise wrong(f"{path}.{name}", value, "a string")
    return value
