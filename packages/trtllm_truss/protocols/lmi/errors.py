"""Errors in LMI's shape and in TGI's, with the status that is true."""

from __future__ import annotations

from typing import Any

from trtllm_truss.errors import QueueFull, RequestError, TrussError
from trtllm_truss.protocols.lmi.tokens import NO_TOKEN, token_object


def error_body(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """The body of an error response.

    LMI answers 424 to nearly everything; `code` here is the true status of the response. TGI's
    clients choose their exception by `error_type`.
    """
    if tgi:
        return {"error": error.message, "error_type": _kind(error)}
    return {"code": error.status, "error": error.message}


def error_line(error: TrussError, *, tgi: bool) -> dict[str, Any]:
    """The last line of a stream that broke off: LMI's token of an error, with its message."""
    if tgi:
        return error_body(error, tgi=True)
    return {
        "token": {**token_object(NO_TOKEN, tgi=False), "error_msg": error.message},
        "generated_text": "",
        "details": {"finish_reason": "error", "generated_tokens": None, "inputs": None},
    }


def _kind(error: TrussError) -> str:
    if isinstance(error, RequestError):
        return "validation"
    return "overloaded" if isinstance(error, QueueFull) else "generation"
