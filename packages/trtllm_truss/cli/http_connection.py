"""A connection of our own server: uvicorn's httptools protocol with limits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trtllm_truss.local_requests import Refusal, error_body, host_of

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_INVALID = (
    *(400, "invalid_request"),
    "the request is not valid HTTP/1.1, its head has more than 65536 bytes, or it has both "
    "Content-Length and Transfer-Encoding; send one of them.",
)
_NO_HOST = (
    *(400, "invalid_request"),
    "the request has no valid Host header, or several; send one with the server's name.",
)
_NO_CODING = (
    *(501, "unsupported_encoding"),
    "Transfer-Encoding is not chunked alone; send the body as it is.",
)
_SCHEMES = (b"http://", b"https://")
_MAX_HEAD_BYTES = 64 << 10
"""The limit of h11, the parser of Truss's server. It covers trailers and chunk extensions too."""

_MAX_PIPELINED = 64
"""Maximum requests of one connection that wait for earlier responses, at 2 KB each."""


class Connection(HttpToolsProtocol):
    """Limits everything but bodies, ignores trailers and upgrades, and reports what is wrong.

    llhttp finishes a message that asks for an upgrade after its head, and drops the body. Java's
    HttpClient asks for `h2c` by default, so such a head is parsed again without that header.

    uvicorn reports a disconnect to the request received last, and answers a malformed request at
    once. The request being answered may be an earlier one.

    It adds checks of RFC 9112: a valid Host is required (3.2), the host of an absolute target takes
    precedence (3.2.2), and chunked is the only transfer coding (6.1).

    Attributes:
        answered: the current request, or the last one.
        is_ending: nothing more is parsed, and the last whole request closes the connection.
        bodiless_bytes: bytes received since the last part of a body.
        field_bytes: size of the fields of a head, or of the trailers after it.
    """

    answered: RequestResponseCycle | None = None
    is_ending = False
    is_in_head = False
    bodiless_bytes = field_bytes = 0
    refusal: Refusal = _INVALID
    url = b""  # uvicorn sets it when a request begins

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
        """Answer 400, or close the connection after the responses to earlier requests."""
        last = self.answered
        if last is None or last.response_complete or (last.more_body and not last.response_started):
            self._send_refusal()
        elif self.is_ending:
            self.transport.abort()
        else:
            if self.pipeline and self.pipeline[0][0].more_body:  # its body is malformed
                self.pipeline.popleft()
            if self.pipeline:
                last, _ = self.pipeline[0]
            last.keep_alive = False
            self.is_ending, self.bodiless_bytes = True, 0

    def _send_refusal(self) -> None:
        path = self.url.partition(b"?")[0].decode("latin-1")
        body = json.dumps(error_body(path, *self.refusal)).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(
            STATUS_LINE[self.refusal[0]] + head + b"connection: close\r\n\r\n" + body
        )
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.answered = cycle
        super()._start_asgi_task(cycle, app)

    def feed(self, data: memoryview) -> memoryview:
        """Parse to the end, or to the end of a head that asks for an upgrade; return the rest."""
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
        self.is_in_head, self.field_bytes = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self.is_in_head:  # RFC 9110, 6.5.1: a trailer is not a header of the request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("a tunnel")
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests at once")
        self.is_in_head, self.bodiless_bytes, self.field_bytes = False, 0, 0
        if not self.parser.should_upgrade():
            self._read_target()
            self._check_coding()
            super().on_headers_complete()

    def _count(self, size: int) -> None:
        self.field_bytes += size
        if self.field_bytes > _MAX_HEAD_BYTES:
            raise ValueError("the head is too long")

    def _read_target(self) -> None:
        """Replace Host with the authority of an absolute target.

        Raises:
            ValueError: Host is missing, invalid or repeated; HTTP/1.0 needs none.
        """
        refusal, self.refusal = self.refusal, _NO_HOST
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            raise ValueError("not one Host")
        if self.url.lower().startswith(_SCHEMES):
            authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            self.headers[:] = [pair for pair in self.headers if pair[0] != b"host"]
            self.headers.append((b"host", authority))
            hosts.append(authority)
        if not all(host_of(host.decode("latin-1")) is not None for host in hosts):
            raise ValueError("an invalid Host")
        self.refusal = refusal

    def _check_coding(self) -> None:
        """Refuse transfer codings that nothing here decodes.

        Raises:
            ValueError: there is a coding other than chunked.
        """
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and b",".join(codings).strip().lower() != b"chunked":
            self.refusal = _NO_CODING
            raise ValueError("a transfer coding")

    def on_body(self, body: bytes) -> None:
        self.bodiless_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self.bodiless_bytes = 0
            super().on_message_complete()
