"""One gRPC call: whole messages out of what its HTTP/2 stream carries, and how it ended.

A message is one byte that tells whether it is compressed, its length in four bytes, and the payload
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
    """What takes in one call's messages. It is called from the event loop and must not block."""

    def message(self, payload: bytes) -> None:
        """One whole message."""

    def ended(self, status: StatusCode, details: str) -> None:
        """Nothing follows; called exactly once unless the call was cancelled on this side."""


class Call:
    """A call in flight.

    Attributes:
        unsent: what the server's window has had no room for yet.
    """

    __slots__ = ("_details", "_partial", "_receiver", "_status", "unsent")

    def __init__(self, receiver: Receiver, payload: bytes) -> None:
        """A call of which nothing has been sent.

        Args:
            receiver: takes in what the server sends.
            payload: the one message that the server is sent.
        """
        self.unsent = memoryview(_MESSAGE_HEAD.pack(0, len(payload)) + payload)
        self._receiver = receiver
        self._partial = b""
        self._status = StatusCode.UNKNOWN
        self._details = ""

    def take(self, data: bytes) -> None:
        """Takes in the next bytes of the stream, cut anywhere."""
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
        """Takes in the first or the last headers; the last ones tell the status."""
        for name, value in headers:
            if name == "grpc-status":
                self._status = _STATUS.get(str(value), StatusCode.UNKNOWN)
            elif name == "grpc-message":
                self._details = unquote(value)

    def end(self) -> None:
        """Tells the receiver that nothing follows."""
        self._receiver.ended(self._status, self._details)

    def break_off(self, details: str) -> None:
        """Tells the receiver that nothing can follow any more."""
        self._receiver.ended(StatusCode.UNAVAILABLE, details)
