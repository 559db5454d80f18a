"""`system` and `messages`, converted for chat templates.

Templates expect a tool's result as a message of its own and calls beside the text
(https://huggingface.co/docs/transformers/chat_extras); Anthropic has both as content blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.fields import check_length
from trtllm_truss.protocols.limits import MAX_CONTENT_PARTS
from trtllm_truss.protocols.messages.fields import check_keys, field_of, wrong
from trtllm_truss.validation import shown

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

    Args:
        system: the field `system`.
        messages: the field `messages`.

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
