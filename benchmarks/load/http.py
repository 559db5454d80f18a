"""A minimal HTTP/1.1 connection that streams answers.

An HTTP library would use more CPU than the measured server.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import cast

from benchmarks.load.record import Record

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_EVENT = b"data:"
_TAIL_BYTES = 2048
"""Enough for the last events, llama.cpp's with its timings too, and the last chunk's frame."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
_ERROR = re.compile(rb'data: ?\{"error":')


class Failed(Exception):
    """A request without a complete answer; the text is its outcome."""


class Answer:
    """The answer to one request.

    Attributes:
        status: HTTP status; 0 before the head has arrived.
        arrivals_s: arrival times of tokens, on the monotonic clock; several may share one.
        events: number of server-sent events.
    """

    __slots__ = ("_chunked", "_head", "_left", "_tail", "arrivals_s", "closes", "events", "status")

    def __init__(self) -> None:
        self.status = 0
        self.arrivals_s: list[float] = []
        self.events = 0
        self.closes = False
        self._head = b""
        self._tail = b""
        self._left = 0
        self._chunked = False

    @property
    def tokens(self) -> int:
        """The usage in the last event; without it, the number of events."""
        usage = _USAGE.search(self._tail)
        return int(usage[1]) if usage else self.events

    @property
    def outcome(self) -> str:
        """The status, or `error` after an error event."""
        return "error" if _ERROR.search(self._tail) else str(self.status)

    def feed(self, data: bytes, now_s: float) -> bool:
        """Parse received bytes; return whether the answer is complete."""
        if self.status:
            return self._feed_body(data, now_s)
        head, found, body = (self._head + data).partition(_HEAD_END)
        if not found:
            self._head = head
            return False
        self.status = int(head[9:12])
        self.closes = _CLOSE.search(head) is not None
        length = _LENGTH.search(head)
        self._chunked = length is None
        self._left = int(length[1]) if length else 0
        self._tail = b"\r\n"  # ends the head; a body without chunks follows it directly
        return self._feed_body(body, now_s)

    def _feed_body(self, body: bytes, now_s: float) -> bool:
        events = (self._tail[1 - len(_EVENT) :] + body).count(_EVENT)
        if events:
            self.events += events
            self.arrivals_s.append(now_s)
        self._tail = (self._tail + body)[-_TAIL_BYTES:]
        self._left -= len(body)
        return self._tail.endswith(_LAST_CHUNK) if self._chunked else self._left <= 0


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._transport: asyncio.Transport | None = None
        self._answer = Answer()
        self._whole: asyncio.Future[Answer] | None = None

    @property
    def is_open(self) -> bool:
        """True if the connection can send another request."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Answer:
        """Send one request and return its complete answer.

        Raises:
            Failed: the connection ended early.
        """
        if self._transport is None or self._transport.is_closing():
            raise Failed("lost")
        self._answer = Answer()
        self._whole = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._whole

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base

    def data_received(self, data: bytes) -> None:
        self._record.last_byte_s = now_s = time.perf_counter()
        answer, whole = self._answer, self._whole
        if whole is None or whole.done() or not answer.feed(data, now_s):
            return
        if answer.closes:
            self.close()
        whole.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(Failed("cut" if self._answer.status else "lost"))


def request_bytes(path: str, body: str) -> bytes:
    """Return a POST request for server-sent events."""
    content = body.encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
