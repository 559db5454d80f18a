"""What `predict` answers: text, server-sent events, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

from trtllm_truss.errors import InternalError, TrussError
from trtllm_truss.requests import Finish, Piece


class PlainText:
    """The text and nothing else, so that only a response that breaks off can tell an error."""

    def push(self, position: int, item: Piece | Finish) -> bytes:
        """A piece's text."""
        return item.text.encode() if isinstance(item, Piece) else b""

    def end(self) -> bytes:
        """Nothing."""
        return b""

    def error(self, error: TrussError) -> bytes:
        """Raises it."""
        raise error


class Events:
    """One event a piece, and a last one that says how the answer ended."""

    def push(self, position: int, item: Piece | Finish) -> bytes:
        """`data: {"text": …}`, in the end `data: {"finish_reason": …, "usage": …}`."""
        return _event({"text": item.text} if isinstance(item, Piece) else _finish_fields(item))

    def end(self) -> bytes:
        """Nothing."""
        return b""

    def error(self, error: TrussError) -> bytes:
        """`data: {"error": …}`."""
        return _event(error_body(error))


class WholeText:
    """`{"text": …, "finish_reason": …, "usage": …}`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._finish: Finish | None = None

    def push(self, position: int, item: Piece | Finish) -> None:
        """Takes the next item in."""
        if isinstance(item, Piece):
            self._text.append(item.text)
        else:
            self._finish = item

    def body(self) -> dict[str, Any]:
        """The object.

        Raises:
            InternalError: the answer has not ended.
        """
        if self._finish is None:
            raise InternalError("the answer has no end.")
        return {"text": "".join(self._text), **_finish_fields(self._finish)}


def error_body(error: TrussError) -> dict[str, Any]:
    """The body of an error response: code, message and the field at fault."""
    return {"error": {"code": error.code, "message": error.message, "param": error.param}}


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def _finish_fields(finish: Finish) -> dict[str, Any]:
    return {
        "finish_reason": finish.reason.value,
        "usage": {
            "prompt_tokens": finish.usage.prompt_tokens,
            "completion_tokens": finish.usage.completion_tokens,
        },
    }
