"""One connection of our own server: uvicorn's with httptools, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_INVALID = (
    "the request is not valid HTTP/1.1, its head has more than 65536 bytes, or it has both "
    "Content-Length and Transfer-Encoding; send one of them."
)
_MAX_HEAD_BYTES = 64 << 10
"""As h11, the parser of Truss's server, has it; of trailers and of chunks' extensions too."""

_MAX_PIPELINED = 64
"""Requests of one connection that wait for the answers before theirs, 2 KB each."""


class Connection(HttpToolsProtocol):
    """Bounds what is not a body, ignores trailers and upgrades, and names what is wrong.

    llhttp ends a message that asks for an upgrade at its head, and drops the body. Java's
    HttpClient asks for `h2c` by default, so such a head is parsed again without that header.

    uvicorn tells the last request that came of a disconnect, and answers what is wrong at once. The
    request that is being answered may be an earlier one.

    Attributes:
        answered: the request that is being answered, or was last.
        is_ending: whether nothing more is parsed, and the last whole request ends the connection.
    """

    answered: RequestResponseCycle | None = None
    is_ending = False
    is_in_head = False
    bodiless_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self.bodiless_bytes += len(data)
        rest = memoryview(data)
        try:
            while rest and not self.is_ending:
                rest = self.feed(rest)
        except HttpParserError:
            self.bodiless_bytes = _MAX_HEAD_BYTES + 1
        if self.bodiless_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answered is not None:
            self.answered.disconnected = True
            self.answered.message_event.set()
        super().connection_lost(exc)

    def _refuse(self) -> None:
        """Answer 400, or end the connection after the answers of the requests before."""
        last = self.answered
        if last is None or last.response_complete or (last.more_body and not last.response_started):
            self.send_400_response(_INVALID)
        elif self.is_ending:
            self.transport.abort()
        else:
            if self.pipeline and self.pipeline[0][0].more_body:  # its body is what is wrong
                self.pipeline.popleft()
            if self.pipeline:
                last, _ = self.pipeline[0]
            last.keep_alive = False
            self.is_ending, self.bodiless_bytes = True, 0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.answered = cycle
        super()._start_asgi_task(cycle, app)

    def feed(self, data: memoryview) -> memoryview:
        """Parse to the end, or to that of a head that asks for an upgrade; return the rest."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            lines = [b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade"]
            version = self.parser.get_http_version().encode()
            start = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
            self.parser.feed_data(b"".join((start, *lines, b"\r\n")))
            return data[upgrade.args[0] :]
        return data[:0]

    def on_message_begin(self) -> None:
        self.is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:  # RFC 9110, 6.5.1: a trailer is no header of the request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("a tunnel")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests at once")
        self.is_in_head, self.bodiless_bytes = False, 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.bodiless_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.bodiless_bytes = 0
            super().on_message_complete()
