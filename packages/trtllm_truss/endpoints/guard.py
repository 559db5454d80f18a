"""Limit the bodies that requests hold: their size, their total, and their time to arrive.

Truss's server reads a whole body before it calls the model. The guard, placed in front of the
running server's application, reads it first, within the limits, and passes on complete bodies only.
For a refused body, the application receives an empty body with the error in its scope, and responds
in the format of its route.

Truss's disconnect watcher is replaced, because it keeps each request alive:
`_install_disconnect_watcher` of Truss's `truss_server.py` (0.18.35) stores a closure over the
request in the request's own state. Until a garbage collection, this cycle keeps the body of a
client that disconnects before Truss calls the model.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trtllm_truss.errors import (
    BodyTimeout,
    BodyTooLarge,
    InvalidRequest,
    Overloaded,
    TrussError,
    UnsupportedEncoding,
)
from trtllm_truss.settings.model import Serving
from trtllm_truss.validation import shown


class SelfCancel:
    """Cancels the task that created it, and distinguishes that from other cancellations.

    Call `consume` on a CancelledError. It costs a tenth of anyio's cancel scope per response.
    """

    __slots__ = ("_requested", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._requested = False

    def request(self) -> None:
        """Cancel the task, from another task or callback of the same event loop."""
        if not self._requested:
            self._requested = True
            self._task.cancel()

    def consume(self) -> bool:
        """Uncancel; return True if no other cancellation is pending."""
        if not self._requested:
            return False
        uncancel = getattr(self._task, "uncancel", None)  # counted from Python 3.11 on
        return uncancel is None or uncancel() == 0


REFUSAL = "trtllm_truss.refusal"
"""Key in ASGI's scope for the error of a refused body."""

SLOWEST_BYTES_PER_S = 32 << 10
"""Average rate below which a body gets no more time than `serving.body_timeout_s`."""

_DRAINED_BODIES = 32
"""Read and drop up to this multiple of the limit; most clients send all before they read."""

_RETRY_AFTER_S = 5
_LOOK_S = 1.0
_CLOSE = (b"connection", b"close")
_BODILESS = ("GET", "HEAD", "OPTIONS")


@dataclass(slots=True, eq=False)
class _Body:
    """A body that is arriving, or that its request holds."""

    began_s: float
    cancellation: SelfCancel
    came_s: float
    parts: deque[bytes] = field(default_factory=deque)
    held_bytes: int = 0
    received_bytes: int = 0
    refusal: TrussError | None = None
    is_whole: bool = False
    is_gone: bool = False

    def is_overdue(self, now_s: float, timeout_s: float) -> bool:
        allowed_s = timeout_s + self.received_bytes / SLOWEST_BYTES_PER_S
        return now_s - self.came_s > timeout_s or now_s - self.began_s > allowed_s


class BodyGuard:
    """Reads the bodies of all applications on one event loop within the limits.

    A body counts from its first byte until its request has finished. When the total exceeds its
    limit, the largest unfinished one is refused, so that small requests pass while large ones
    arrive.

    Args:
        limits: `max_body_bytes`, `max_bodies_bytes` and `body_timeout_s`.

    Attributes:
        held_bytes: total size of the bodies held.
    """

    def __init__(self, limits: Serving) -> None:
        self.held_bytes = 0
        self._limits = limits
        self._arriving: set[_Body] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application with a complete body, or with the error of a refused one."""
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        is_ambiguous = _is_ambiguous(scope["headers"])
        if is_ambiguous:  # RFC 9112, 6.1: the rest of the connection cannot be trusted
            send = closing(send)
        if scope["method"] in _BODILESS:  # no route reads their bodies
            await app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        body = _Body(now_s, SelfCancel(), now_s)
        try:
            if is_ambiguous:
                body.is_whole = True
                body.refusal = InvalidRequest(
                    "the request has both Content-Length and Transfer-Encoding; send one of them."
                )
            else:
                body.refusal = _refused_encoding(scope["headers"])
                await self._read(body, receive, loop)
            if body.is_gone:
                return
            if body.refusal is not None:
                scope = {**scope, REFUSAL: body.refusal}
                send = send if body.is_whole else closing(send)
            await app(scope, _replayed(body.parts, receive), send)
        finally:
            self._drop(body)

    async def _read(self, body: _Body, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        """Read a body to its end, or drain part of a refused one."""
        most_bytes = _DRAINED_BODIES * self._limits.max_body_bytes
        self._arriving.add(body)
        if self._timer is None:
            self._look_later(loop)
        try:
            while body.received_bytes <= most_bytes:
                message = await receive()
                if message["type"] == "http.disconnect":
                    body.is_gone = True
                    return
                if data := message.get("body", b""):
                    body.came_s = loop.time()
                    self._add(body, data)
                if not message.get("more_body", False):
                    body.is_whole = True
                    return
        except asyncio.CancelledError:
            if not body.cancellation.consume():
                raise
        finally:
            self._arriving.discard(body)

    def _add(self, body: _Body, part: bytes) -> None:
        limits = self._limits
        body.received_bytes += len(part)
        if body.refusal is not None:
            return
        if body.received_bytes > limits.max_body_bytes:
            self._refuse(body, BodyTooLarge.beyond(limits.max_body_bytes))
            return
        body.parts.append(part)
        body.held_bytes += len(part)
        self.held_bytes += len(part)
        while self.held_bytes > limits.max_bodies_bytes:
            largest = max(self._arriving, key=lambda each: each.held_bytes)
            self._refuse(
                largest,
                Overloaded(
                    f"the requests in flight hold {limits.max_bodies_bytes} bytes of bodies "
                    "(serving.max_bodies_bytes); try again shortly, or send less.",
                    retry_after_s=_RETRY_AFTER_S,
                ),
            )

    def _refuse(self, body: _Body, error: TrussError) -> None:
        body.refusal = error
        self._drop(body)

    def _drop(self, body: _Body) -> None:
        body.parts.clear()
        self.held_bytes -= body.held_bytes
        body.held_bytes = 0

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        wait_s = min(_LOOK_S, self._limits.body_timeout_s / 4)
        self._timer = loop.call_later(wait_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse overdue bodies, and check again while bodies arrive."""
        self._timer = None
        timeout_s, now_s = self._limits.body_timeout_s, loop.time()
        for body in self._arriving:
            if body.is_overdue(now_s, timeout_s):
                if body.refusal is None:
                    self._refuse(body, BodyTimeout.after(timeout_s, SLOWEST_BYTES_PER_S))
                body.cancellation.request()
        if self._arriving:
            self._look_later(loop)


def _replayed(parts: deque[bytes], receive: Receive) -> Receive:
    """Return a `receive` that passes a body on in parts, at least an empty one."""
    is_over = False

    async def replay() -> Message:
        nonlocal is_over
        if is_over:
            return await receive()
        part = parts.popleft() if parts else b""
        is_over = not parts
        return {"type": "http.request", "body": part, "more_body": not is_over}

    return replay


def _is_ambiguous(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    has_length = has_encoding = False
    for name, _ in headers:
        has_length = has_length or name == b"content-length"
        has_encoding = has_encoding or name == b"transfer-encoding"
    return has_length and has_encoding


def _refused_encoding(headers: Iterable[tuple[bytes, bytes]]) -> UnsupportedEncoding | None:
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            encoding = shown(value.decode("latin-1"))
            return UnsupportedEncoding(
                f"Content-Encoding is {encoding}; bodies are read as they are. Send the JSON "
                "uncompressed."
            )
    return None


def closing(send: Send) -> Send:
    """Close the connection after the response."""

    async def closing_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
        await send(message)

    return closing_send


_MODULE = "truss_server"

logger = logging.getLogger(__name__)

_FUNCTION = "_install_disconnect_watcher"
_POLL_S = 1.0


def replace_watcher() -> None:
    """Replace the function in the running Truss server, if it has one."""
    server = sys.modules.get(_MODULE)
    if hasattr(server, _FUNCTION):
        setattr(server, _FUNCTION, _install)


def _install(request: Request) -> None:
    request.state.watch_disconnect = _Watcher(request)


class _Watcher:
    """`with request.state.watch_disconnect() as gone:` sets the event when the client disconnects.

    Usable on any thread.
    """

    __slots__ = ("_loop", "_request")

    def __init__(self, request: Request) -> None:
        self._loop = asyncio.get_running_loop()
        self._request = weakref.ref(request)

    @contextmanager
    def __call__(self) -> Iterator[threading.Event]:
        gone = threading.Event()
        watching = asyncio.run_coroutine_threadsafe(_watch(self._request, gone), self._loop)
        try:
            yield gone
        finally:
            watching.cancel()


async def _watch(reference: weakref.ref[Request], gone: threading.Event) -> None:
    try:
        while (request := reference()) is not None and not await request.is_disconnected():
            del request
            await asyncio.sleep(_POLL_S)
        gone.set()
    except Exception:
        logger.exception("cannot watch for the client's disconnect")
