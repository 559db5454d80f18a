"""Pieces, ends and errors as the bytes that go over the wire."""

from __future__ import annotations

import json
from typing import Any

from trtllm_truss.errors import TrussError
from trtllm_truss.serving.request import Finish, Piece


def event(payload: dict[str, Any]) -> bytes:
    """One server-sent event that holds a JSON object."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def piece_event(piece: Piece) -> bytes:
    """`data: {"text": …}`."""
    return event({"text": piece.text})


def finish_event(finish: Finish) -> bytes:
    """`data: {"finish_reason": …, "usage": …}`, the last frame of a whole answer."""
    return event(finish_fields(finish))


def error_event(error: TrussError) -> bytes:
    """`data: {"error": …}`, the last frame of an answer that broke off."""
    return event(error_body(error))


def finish_fields(finish: Finish) -> dict[str, Any]:
    """`finish_reason` and `usage` as JSON."""
    return {
        "finish_reason": finish.reason.value,
        "usage": {
            "prompt_tokens": finish.usage.prompt_tokens,
            "completion_tokens": finish.usage.completion_tokens,
        },
    }


def error_body(error: TrussError) -> dict[str, Any]:
    """The body of every error response: code, message and the field at fault."""
    return {"error": {"code": error.code, "message": error.message, "param": error.param}}
