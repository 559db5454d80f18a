"""One hostile body, and the parts that bodies are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIMIT_BYTES = 8 << 20
"""The default of `serving.max_body_bytes`."""

PREDICT, INVOCATIONS = "/v1/models/model:predict", "/invocations"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@dataclass(frozen=True, slots=True)
class HostileBody:
    """One request and the expected answer.

    Attributes:
        name: unique.
        route: path below the server's address.
        make: creates the body.
        message: words of the error message, including the field and the limit; none for an answer.
        status: of the response.
        needs_tools: it is for the server of `tool_model`, instead of the example.
    """

    name: str
    route: str
    make: Callable[[], bytes]
    message: tuple[str, ...]
    status: int = 400
    needs_tools: bool = False


def dumps(**fields: Any) -> Callable[[], bytes]:
    return lambda: json.dumps(fields).encode()


def repeated(head: bytes, item: bytes, times: int, tail: bytes) -> Callable[[], bytes]:
    return lambda: head + item * times + tail


def keys(prefix: str, count: int) -> dict[str, int]:
    return {f"{prefix}{number}": 1 for number in range(count)}


def chat(**fields: Any) -> Callable[[], bytes]:
    return dumps(**{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields})


def guided(kind: str, value: Any) -> Callable[[], bytes]:
    return chat(response_format={"type": kind, kind: value})


def message(**fields: Any) -> Callable[[], bytes]:
    return dumps(messages=[{"role": "user", "content": "Hi", **fields}], max_tokens=1)
