"""Turns of a conversation while it is read, and the rules shared by all APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trtllm_truss.conversation import Turn
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import (
    MAX_ALL_TOOL_CALLS,
    MAX_CONTENT_PARTS,
    Budget,
    parse_json_text,
)
from trtllm_truss.protocols.fields import check_length, field_of
from trtllm_truss.validation import shown

_OBJECT = re.compile(r"[ \t\n\r]*\{")
_TEXTS = ("content", "reasoning_content")
"""Keys of texts, which are collected in parts."""

_PART_BREAK = "\n"


class Turns:
    """Collects the turns of a conversation.

    Args:
        param: field that contains the conversation, for errors.
        merges: roles whose neighbouring turns are merged.
    """

    def __init__(self, param: str, merges: Sequence[str] = ()) -> None:
        self._param = param
        self._merges = merges
        self._turns: list[Turn] = []
        self._arguments = Budget(" in arguments of calls", param)
        self._calls = 0

    def begin(self, role: str, **keys: str | None) -> None:
        """Start a turn, or continue the last one if neighbours with this role are merged.

        Args:
            keys: further keys of the turn; None for none.
        """
        if role in self._merges and self._turns and self._turns[-1]["role"] == role:
            return
        given = {key: value for key, value in keys.items() if value is not None}
        self._turns.append({"role": role, **given})

    def text(self, text: str) -> None:
        """Add a text to the last turn."""
        self._add("content", text)

    def reasoning(self, text: str) -> None:
        """Add reasoning to the last turn."""
        self._add("reasoning_content", text)

    def call(self, name: str, arguments: Any, id_: str | None = None) -> None:
        """Add a call to the last turn.

        Args:
            arguments: as for `read_arguments`.

        Raises:
            InvalidRequest: the arguments of all calls together are too large.
        """
        self._calls += 1
        function = {"name": name, "arguments": read_arguments(arguments, self._arguments)}
        call = {"type": "function", "function": function}
        self._turns[-1].setdefault("tool_calls", []).append(
            call if id_ is None else {"id": id_, **call}
        )

    def result(self, id_: str | None, text: str, name: str | None = None) -> None:
        """Add a turn with the result of a call."""
        self.begin("tool", tool_call_id=id_, name=name)
        self.text(text)

    def _add(self, key: str, text: str) -> None:
        """Add a part of a text; an empty first part is ignored."""
        parts = self._turns[-1].setdefault(key, [])
        if parts == [""]:
            parts.clear()
        parts.append(text)

    def finish(self) -> list[Turn]:
        """Return the conversation.

        Raises:
            InvalidRequest: there are too many calls.
        """
        check_length(
            self._param,
            range(self._calls),
            MAX_ALL_TOOL_CALLS,
            param=self._param,
            unit="tool calls",
        )
        for turn in self._turns:
            for key in _TEXTS:
                if key in turn:
                    turn[key] = _PART_BREAK.join(turn[key])
        return self._turns


def read_arguments(arguments: Any, budget: Budget) -> Any:
    """Return a call's arguments as an object, or as text if they are not a JSON object.

    Truncated, null and empty arguments occur in histories that this server itself returned, so they
    are accepted.

    Args:
        arguments: an object, or a text that should contain one; None for none. Other JSON, such as
            a list, becomes its text.

    Raises:
        InvalidRequest: the objects together are too large.
    """
    if arguments is None or isinstance(arguments, Mapping):
        return arguments or {}
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    if arguments.strip() in ("", "null", "{}"):
        return {}
    if not _OBJECT.match(arguments):
        return arguments
    try:
        return parse_json_text(arguments, budget)
    except ValueError:
        return arguments


def join_parts(
    parts: Sequence[Any],
    path: str,
    keys: Mapping[str, str],
    notes: Mapping[str, str] | None = None,
) -> str:
    """Join the parts of a content with line breaks.

    Args:
        path: location of the content, for errors.
        keys: key of the text, by type of part.
        notes: replacements for parts without text, by type; see `OMITTED`.

    Raises:
        InvalidRequest: there are too many parts, or one has no text.
    """
    param = field_of(path)
    check_length(path, parts, MAX_CONTENT_PARTS, param=param)
    texts = []
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(keys.get(kind, "")) if isinstance(kind, str) else None
        if text is None and notes and isinstance(kind, str):
            text = notes.get(kind)
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{path}[{place}] is of type {shown(kind)}; only parts of type {next(iter(keys))}, "
                "with their text, are read.",
                param=param,
            )
        texts.append(text)
    return _PART_BREAK.join(texts)


OMITTED = {
    **dict.fromkeys(("image", "image_url", "input_image"), "[image omitted]"),
    **dict.fromkeys(("audio", "input_audio", "audio_url"), "[audio omitted]"),
    **dict.fromkeys(("video", "video_url", "input_video"), "[video omitted]"),
    **dict.fromkeys(("file", "input_file", "document", "resource"), "[file omitted]"),
}
"""Replacements for media in a call's result.

The model reads text, and an agent that has fetched an image can continue.
"""
