"""How a gRPC call can end."""

from __future__ import annotations

import enum


class StatusCode(enum.IntEnum):
    """Status codes of gRPC (grpc/grpc, doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def status_code(text: str) -> StatusCode:
    """The code that a `grpc-status` header names; UNKNOWN where it names none."""
    try:
        return StatusCode(int(text))
    except ValueError:
        return StatusCode.UNKNOWN
