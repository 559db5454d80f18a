"""One gRPC call: messages and status, parsed from its HTTP/2 stream.

A message is one byte that flags compression, its length in four bytes, and the payload
(gRPC over HTTP2, "Length-Prefixed-Message").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import AnyStr, Protocol
from urllib.parse import unquote

from grpc import StatusCode

_STATUS = {str(code.value[0]): code for code in StatusCode}
_MESSAGE_HEAD = struct.Struct(">BI")
_MESSAGE_HEAD_BYTES = 5


class Receiver(Protocol):
    """Receiver of one call's messages, called from the event loop; must not block."""

    def message(self, payload: bytes) -> None: ...

    def ended(self, status: StatusCode, details: str) -> None:
        """Receive the end; called exactly once unless the call was cancelled on this side."""


class Call:
    """A call in flight, with the bytes that the server's window had no room for yet (`unsent`)."""

    __slots__ = ("_details", "_partial", "_receiver", "_status", "unsent")

    def __init__(self, receiver: Receiver, payload: bytes) -> None:
        self.unsent = memoryview(_MESSAGE_HEAD.pack(0, len(payload)) + payload)
        self._receiver = receiver
        self._partial = b""
        self._status = StatusCode.UNKNOWN
        self._details = ""

    def take(self, data: bytes) -> None:
        """Parse the next bytes of the stream, cut anywhere."""
        if self._partial:
            data = self._partial + data
        position, end = 0, len(data)
        while end - position >= _MESSAGE_HEAD_BYTES:
            _, size = _MESSAGE_HEAD.unpack_from(data, position)
            begin = position + _MESSAGE_HEAD_BYTES
            if begin + size > end:
                break
            position = begin + size
            self._receiver.message(data[begin:position])
        self._partial = data[position:]

    def take_headers(self, headers: Iterable[tuple[AnyStr, AnyStr]]) -> None:
        """Read the first headers or the trailers, which hold the status."""
        for name, value in headers:
            if name == "grpc-status":
                self._status = _STATUS.get(str(value), StatusCode.UNKNOWN)
            elif name == "grpc-message":
                self._details = unquote(value)

    def end(self) -> None:
        self._receiver.ended(self._status, self._details)

    def break_off(self, details: str) -> None:
        self._receiver.ended(StatusCode.UNAVAILABLE, details)
