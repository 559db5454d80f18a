"""Errors in OpenAI's shape (https://platform.openai.com/docs/guides/error-codes)."""

from __future__ import annotations

from typing import Any

from trtllm_truss.errors import QueueFull, RequestError, TrussError


def error_body(error: TrussError) -> dict[str, Any]:
    """The body of an error response; `code` is ours, the status says the rest."""
    return {
        "error": {
            "message": error.message,
            "type": _kind(error),
            "param": error.param,
            "code": error.code,
        }
    }


def _kind(error: TrussError) -> str:
    if isinstance(error, RequestError):
        return "invalid_request_error"
    return "rate_limit_error" if isinstance(error, QueueFull) else "server_error"
