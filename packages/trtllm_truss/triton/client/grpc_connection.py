"""gRPC calls over one HTTP/2 connection, at about a microsecond per message.

`h2` handles the protocol: headers, settings, pings, resets. DATA and WINDOW_UPDATE frames bypass
it, one per generated token and three per request: their nine-byte headers are parsed here (RFC 9113
§4.1, §6.1 and §6.9), because `h2` and grpcio spend some thirty microseconds on each. With
tritonclient.aio, tokens arrive half as fast (docs/performance.md).

A message consists of a compression flag in one byte, its length in four bytes, and the payload
(gRPC over HTTP2, "Length-Prefixed-Message").

GOAWAY bypasses `h2` too: `h2` refuses all frames after it, while a stopping gRPC server still sends
a ping and the rest of the running calls (RFC 9113 §6.8).
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import AnyStr, Protocol, TypeAlias, cast
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import WindowUpdateFrame

from trtllm_truss.triton.client.failures import StatusCode

_STATUS = {str(int(code)): code for code in StatusCode}
Payload: TypeAlias = bytes | bytearray
_MESSAGE_HEAD = struct.Struct(">BI")
_MESSAGE_HEAD_BYTES = 5
_LARGE_MESSAGE_BYTES = 2**17
"""Messages above this size, such as logits, grow in place.

Smaller ones are copied for each frame.
"""


class Receiver(Protocol):
    """Receives one call's messages, on the event loop; must not block."""

    def message(self, payload: Payload) -> bool:
        """Receive a message; return True if it finishes the exchange."""

    def ended(self, status: StatusCode, details: str) -> None:
        """Receive the end of the call.

        Called exactly once, unless the exchange has finished before or was cancelled on this side.
        """


class GrpcCall:
    """An open call.

    Args:
        one_message: close the client's side after the first message.

    Attributes:
        receiver: receives the messages of the exchange; None between two exchanges.
        unsent: bytes of our message that did not fit into the server's window yet.
        ends: True if nothing follows `unsent`.
        received_bytes: size of everything received.
    """

    __slots__ = (
        "_details",
        "_large",
        "_missing",
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
        self._large = bytearray()  # a message above _LARGE_MESSAGE_BYTES
        self._missing = 0  # bytes of that message still to come
        self._status = StatusCode.UNKNOWN
        self._details = ""

    def begin(self, payload: bytes, receiver: Receiver) -> None:
        """Begin an exchange; the previous one must have finished."""
        self.receiver = receiver
        self.unsent = memoryview(_MESSAGE_HEAD.pack(0, len(payload)) + payload)

    @property
    def is_clean(self) -> bool:
        """Return True if another exchange can begin: no message is partly sent or received."""
        return not (self.ends or self.unsent or self._partial or self._missing)

    def take(self, data: bytes) -> bool:
        """Parse the next bytes of the stream, split anywhere.

        Return True if the exchange has finished.
        """
        self.received_bytes += len(data)
        if self._missing:
            part, data = data[: self._missing], data[self._missing :]
            self._large += part
            self._missing -= len(part)
            if self._missing:
                return self.receiver is None
            message, self._large = self._large, bytearray()
            if self.receiver is not None and self.receiver.message(message):
                self.receiver = None
        elif self._partial:
            data = self._partial + data
        receiver, position, end = self.receiver, 0, len(data)
        while end - position >= _MESSAGE_HEAD_BYTES:
            _, size = _MESSAGE_HEAD.unpack_from(data, position)
            begin = position + _MESSAGE_HEAD_BYTES
            if begin + size > end:
                if size > _LARGE_MESSAGE_BYTES:
                    self._large += data[begin:]
                    self._missing = size - (end - begin)
                    position = end
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


class _End:
    """Receives the end of an idle call."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def message(self, payload: Payload) -> bool:
        return False

    def ended(self, status: StatusCode, details: str) -> None:
        self.future.set_result(None)


_FRAME_HEAD = struct.Struct(">IBI")  # length (24 bits) and type (8 bits), flags, stream
_FRAME_HEAD_BYTES = 9
_DATA, _END_STREAM, _PADDED = 0x0, 0x1, 0x8
_GOAWAY, _WINDOW_UPDATE = 0x7, 0x8
_GOAWAY_HEAD = struct.Struct(">II")  # last stream accepted, error code
_WINDOW = struct.Struct(">I")
_LARGEST_WINDOW = 2**31 - 1
_LARGEST_FRAME_BYTES = _FRAME_HEAD_BYTES + 2**14  # unless we allow more
_FIRST_WINDOW = 2**16 - 1
_SETTINGS = {SettingCodes.INITIAL_WINDOW_SIZE: _LARGEST_WINDOW, SettingCodes.ENABLE_PUSH: 0}
_WINDOW_STEP_BYTES = 2**24
_LAST_STREAM_ID = 2**30
_MAX_CALL_BYTES = 2**30  # below a call's window, which is never enlarged
_IDLE_LIMIT_S = 0.25
"""Idle limit of a call between two exchanges; a stopping server waits for such calls."""


class _Http2(H2Connection):
    """HTTP/2 connection that remembers fewer closed streams.

    The default set takes ten megabytes.
    """

    MAX_CLOSED_STREAMS = 2**13


class GrpcConnection(asyncio.Protocol):
    """A client's connection to one gRPC server, without TLS; belongs to the running event loop.

    Args:
        authority: ``host:port``.
        exchange_method: ``/package.Service/Method`` of `exchange`, bidirectional streaming.
    """

    def __init__(self, authority: str, exchange_method: str = "") -> None:
        configuration = H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = _Http2(configuration)
        self._h2.local_settings = Settings(initial_values=_SETTINGS)
        self._authority = authority
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, GrpcCall] = {}
        self._held_up: set[int] = set()  # calls whose message exceeds the server's window
        self._exchange_method = exchange_method
        self._idle: list[tuple[float, int]] = []  # idle calls and when each became idle
        self._idle_timer: asyncio.TimerHandle | None = None
        self._tail = b""
        self._unwritten = bytearray()  # precedes the data that `h2` has to send
        self._unacknowledged_bytes = 0
        self._going_away = False
        self._is_flushing = False

    @classmethod
    async def connect(cls, authority: str, exchange_method: str = "") -> GrpcConnection:
        """Open a connection; the arguments are those of the class.

        Raises:
            OSError: the server cannot be reached.
        """
        host, _, port = authority.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(authority, exchange_method), host, int(port)
        )
        return connection

    @property
    def is_usable(self) -> bool:
        """Return True if the server accepts new calls."""
        return self._is_open and not self._going_away

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def call(self, method: str, payload: bytes, receiver: Receiver) -> int:
        """Start a call with one message.

        Args:
            method: ``/package.Service/Method``.
            receiver: receives the server's messages.

        Returns:
            The call's number on this connection.
        """
        return self._begin(self._open(method, one_message=True), payload, receiver)

    def exchange(self, payload: bytes, receiver: Receiver) -> int:
        """Send a message on an idle call, or on a new one that stays open for the next exchange.

        A short exchange without headers and trailers costs client and server half as much.

        Args:
            receiver: receives the server's messages up to the one that finishes the exchange.

        Returns:
            The call's number on this connection.
        """
        while self._idle:
            _, number = self._idle.pop()
            if (call := self._calls.get(number)) is not None and call.is_clean:
                return self._begin(number, payload, receiver)
        number = self._open(self._exchange_method, one_message=False)
        return self._begin(number, payload, receiver)

    def finish(self, number: int, receiver: Receiver) -> None:
        """Close this side of a call; no effect once its exchange with `receiver` has finished."""
        call = self._calls.get(number)
        if call is not None and call.receiver is receiver:
            self._end_ours(number, call)
            self._flush()

    def cancel(self, number: int, receiver: Receiver) -> None:
        """Reset a call; no effect once its exchange with `receiver` has finished.

        The receiver is not called again.
        """
        call = self._calls.get(number)
        if call is not None and call.receiver is receiver:
            del self._calls[number]
            if self._is_open:
                self._h2.reset_stream(number, ErrorCodes.CANCEL)
                self._flush()
                self._close_after_last_call()

    async def end(self, within_s: float) -> None:
        """Close the idle calls and, once the server has closed them too, the connection.

        Triton keeps a model until its exit timeout if the connection breaks while a call is being
        closed (2.51: 6 of 30 servers; none of 30 whose client waited).
        """
        idle = self._calls.keys() & {number for _, number in self._idle if self._is_open}
        self._idle.clear()
        ends = [_End() for _ in idle]
        for number, end in zip(idle, ends, strict=True):
            call = self._calls[number]
            call.receiver = end
            self._end_ours(number, call)
        self._flush()
        if ends:
            await asyncio.wait([end.future for end in ends], timeout=within_s)
        self.close()

    def close(self) -> None:
        """Close the connection; calls in flight fail with UNAVAILABLE."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface, with windows so large that they never close; responses are small."""
        self._transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._write()
        self._widen(_LARGEST_WINDOW - _FIRST_WINDOW)

    def connection_lost(self, exc: Exception | None) -> None:
        calls, self._calls = self._calls, {}
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for call in calls.values():
            call.break_off("the connection was lost")

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames; keep the rest."""
        if self._tail:
            data = self._tail + data
        position, end = 0, len(data)
        while end - position >= _FRAME_HEAD_BYTES:
            length_and_type, flags, number = _FRAME_HEAD.unpack_from(data, position)
            frame_end = position + _FRAME_HEAD_BYTES + (length_and_type >> 8)
            if frame_end > end:
                if frame_end - position > _LARGEST_FRAME_BYTES:  # not HTTP/2
                    self.close()
                break
            kind = length_and_type & 0xFF
            if kind == _DATA:
                self._receive_data(flags, number, data[position + _FRAME_HEAD_BYTES : frame_end])
            elif kind == _WINDOW_UPDATE:
                self._receive_window(number, data[position + _FRAME_HEAD_BYTES : frame_end])
            elif kind == _GOAWAY:
                self._receive_goaway(data[position + _FRAME_HEAD_BYTES : frame_end])
            else:
                self._receive_control(data[position:frame_end])
            position = frame_end
        self._tail = data[position:]
        self._unacknowledged_bytes += position
        if self._unacknowledged_bytes > _WINDOW_STEP_BYTES:
            self._widen(self._unacknowledged_bytes)
            self._unacknowledged_bytes = 0

    def _receive_data(self, flags: int, number: int, data: bytes) -> None:
        if flags & (_END_STREAM | _PADDED):  # gRPC servers send neither
            self.close()
            return
        call = self._calls.get(number)
        if call is None:  # it was cancelled
            return
        if call.receiver is None:  # an unsolicited message
            self._end_ours(number, call)
            self._flush()
        elif call.take(data):
            self._keep(number, call)

    def _receive_window(self, number: int, data: bytes) -> None:
        target = self._h2 if number == 0 else self._h2.streams.get(number)
        if target is None:  # the call has ended
            return
        size_bytes = _WINDOW.unpack(data)[0] & _LARGEST_WINDOW if len(data) == _WINDOW.size else 0
        target.outbound_flow_control_window += size_bytes
        if not size_bytes or target.outbound_flow_control_window > _LARGEST_WINDOW:
            self.close()
        elif self._held_up:
            self._send_unsent()
            self._flush()

    def _receive_goaway(self, data: bytes) -> None:
        """Let accepted calls continue; fail the others and close the idle ones."""
        self._going_away = True
        if len(data) < _GOAWAY_HEAD.size:
            self.close()
            return
        last, error = _GOAWAY_HEAD.unpack_from(data)
        if error != ErrorCodes.NO_ERROR:
            self.close()
            return
        for number in [each for each in self._calls if each > last & _LARGEST_WINDOW]:
            self._calls.pop(number).break_off(
                "the server is stopping and has not accepted the call"
            )
        for _, number in self._idle:
            if (call := self._calls.get(number)) is not None:
                self._end_ours(number, call)
        self._idle.clear()
        self._flush()
        self._close_after_last_call()

    def _close_after_last_call(self) -> None:
        """Close a connection that takes no new calls, because a stopping server waits for it."""
        if self._going_away and not self._calls and self._transport is not None:
            self._write()
            self._transport.close()

    def _open(self, method: str, *, one_message: bool) -> int:
        number = self._h2.get_next_available_stream_id()
        self._going_away |= number > _LAST_STREAM_ID
        head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        self._h2.send_headers(number, head)
        self._calls[number] = GrpcCall(one_message=one_message)
        return number

    def _begin(self, number: int, payload: bytes, receiver: Receiver) -> int:
        self._calls[number].begin(payload, receiver)
        self._send_message(number)
        self._flush()
        return number

    def _keep(self, number: int, call: GrpcCall) -> None:
        """Keep a call for the next exchange."""
        if self._going_away or not call.is_clean or call.received_bytes > _MAX_CALL_BYTES:
            self._end_ours(number, call)
            self._flush()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), number))
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(_IDLE_LIMIT_S, self._end_idle)

    def _end_idle(self) -> None:
        """Close the calls that were idle for long enough; the last one used is reused first."""
        self._idle_timer = None
        loop = asyncio.get_running_loop()
        long_ago = loop.time() - _IDLE_LIMIT_S
        count = bisect_right(self._idle, long_ago, key=itemgetter(0))
        for _, number in self._idle[:count]:
            if (call := self._calls.get(number)) is not None:
                self._end_ours(number, call)
        del self._idle[:count]
        self._flush()
        if self._idle:
            since, _ = self._idle[0]
            self._idle_timer = loop.call_at(since + _IDLE_LIMIT_S, self._end_idle)

    def _end_ours(self, number: int, call: GrpcCall) -> None:
        if not call.ends and self._is_open:
            call.ends = True
            if not call.unsent:
                self._h2.end_stream(number)

    def _receive_control(self, frame: bytes) -> None:
        try:
            for event in self._h2.receive_data(frame):
                self._handle(event)
        except H2Error:
            self.close()
            return
        self._flush()
        self._close_after_last_call()

    def _handle(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            if (call := self._calls.get(event.stream_id)) is not None:
                call.take_headers(event.headers)
        elif isinstance(event, StreamEnded):
            if (call := self._calls.pop(event.stream_id, None)) is not None:
                call.end()
        elif isinstance(event, StreamReset):
            if (call := self._calls.pop(event.stream_id, None)) is not None:
                call.break_off("the server reset the call")
        elif isinstance(event, RemoteSettingsChanged):
            self._send_unsent()

    def _send_unsent(self) -> None:
        held_up, self._held_up = self._held_up, set()
        for number in held_up & self._calls.keys():
            self._send_message(number)

    def _send_message(self, number: int) -> None:
        """Send as much of a call's message as fits into the server's window."""
        call, h2 = self._calls[number], self._h2
        while call.unsent:
            room = h2.local_flow_control_window(number)
            part = call.unsent[: max(0, min(room, h2.max_outbound_frame_size))]
            if not part:
                self._held_up.add(number)
                return
            call.unsent = call.unsent[len(part) :]
            if call.ends and not call.unsent:
                h2.send_data(number, part, end_stream=True)
                return
            self._unwritten += h2.data_to_send()
            self._unwritten += _FRAME_HEAD.pack(len(part) << 8 | _DATA, 0, number)
            self._unwritten += part
            h2.outbound_flow_control_window -= len(part)
            h2.streams[number].outbound_flow_control_window -= len(part)

    def _widen(self, size_bytes: int) -> None:
        """Return bytes of the connection's window to the server."""
        assert self._transport is not None
        self._transport.write(WindowUpdateFrame(0, size_bytes).serialize())

    def _flush(self) -> None:
        """Write in the next turn of the event loop, together with all data written in this one."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_flushing = False
        assert self._transport is not None
        self._unwritten += self._h2.data_to_send()
        if self._unwritten:
            self._transport.write(self._unwritten)
            self._unwritten = bytearray()
