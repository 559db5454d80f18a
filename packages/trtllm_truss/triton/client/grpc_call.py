"""One gRPC call: messages and status, parsed from its HTTP/2 stream.

A message is one byte that flags compression, its length in four bytes, and the payload
(gRPC over HTTP2, "Length-Prefixed-Message").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import AnyStr, Protocol
from urllib.parse import unquote

from trtllm_truss.triton.client.grpc_status import StatusCode

_STATUS = {str(int(code)): code for code in StatusCode}
_MESSAGE_HEAD = struct.Struct(">BI")
_MESSAGE_HEAD_BYTES = 5


class Receiver(Protocol):
    """Receiver of one call's messages, called from the event loop; must not block."""

    def message(self, payload: bytes) -> bool:
        """Receive a message; return True if it ends the exchange."""

    def ended(self, status: StatusCode, details: str) -> None:
        """Receive the end of the call.

        Called exactly once unless the exchange ended before, or was cancelled on this side.
        """


class Call:
    """An open call.

    Args:
        one_message: end the client's side after the first message.

    Attributes:
        receiver: receives the messages of the exchange; None between two exchanges.
        unsent: bytes of our message that the server's window had no room for yet.
        ends: True if nothing follows `unsent`.
        received_bytes: size of everything received.
    """

    __slots__ = (
        "_details",
        "_partial",
        "_status",
        "ends",
        "received_bytes",
        "receiver",
        "unsent",
    )

    def __init__(self, *, one_message: bool) -> None:
        self.receiver: Receiver | None = None
        self.unsent = memoryview(b"")
        self.ends = one_message
        self.received_bytes = 0
        self._partial = b""
        self._status = StatusCode.UNKNOWN
        self._details = ""

    def begin(self, payload: bytes, receiver: Receiver) -> None:
        """Begin an exchange; the last one must have ended."""
        self.receiver = receiver
        self.unsent = memoryview(_MESSAGE_HEAD.pack(0, len(payload)) + payload)

    @property
    def is_clean(self) -> bool:
        """Return True if another exchange can begin: nothing is unsent or half received."""
        return not (self.ends or self.unsent or self._partial)

    def take(self, data: bytes) -> bool:
        """Parse the next bytes of the stream, cut anywhere; return True if the exchange ended."""
        self.received_bytes += len(data)
        if self._partial:
            data = self._partial + data
        receiver, position, end = self.receiver, 0, len(data)
        while end - position >= _MESSAGE_HEAD_BYTES:
            _, size = _MESSAGE_HEAD.unpack_from(data, position)
            begin = position + _MESSAGE_HEAD_BYTES
            if begin + size > end:
                break
            position = begin + size
            if receiver is not None and receiver.message(data[begin:position]):
                receiver = self.receiver = None
        self._partial = data[position:]
        return receiver is None

    def take_headers(self, headers: Iterable[tuple[AnyStr, AnyStr]]) -> None:
        """Read the first headers or the trailers, which hold the status."""
        for name, value in headers:
            if name == "grpc-status":
                self._status = _STATUS.get(str(value), StatusCode.UNKNOWN)
            elif name == "grpc-message":
                self._details = unquote(value)

    def end(self) -> None:
        if self.receiver is not None:
            self.receiver.ended(self._status, self._details)

    def break_off(self, details: str) -> None:
        if self.receiver is not None:
            self.receiver.ended(StatusCode.UNAVAILABLE, details)
