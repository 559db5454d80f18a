"""Handle one HTTP request in any protocol.

A client that disconnects cancels its work, before and during the response. Before a response
Starlette does not read the connection's events; during one it does, at the cost of a task group.
Here one task listens for both and cancels the working one. Large bodies take turns, between which
the event loop serves other clients.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from trtllm_truss.errors import InternalError, TrussError, drop_tracebacks
from trtllm_truss.guard import REFUSAL, SelfCancel
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    ApiAdapter,
    Call,
    Writer,
    parse_json_object,
)
from trtllm_truss.requests import AnswerItem, GenerationEnd
from trtllm_truss.serving.service import Service

if TYPE_CHECKING:
    from trtllm_truss.tracing import CallTrace

Result = TypeVar("Result")

_LISTEN_AFTER_S = 0.1
"""Most short requests end before, and need no task that listens."""


class ClientGone(Exception):
    """The client closed the connection."""


class ClientConnection:
    """The connection of one client, whose disconnect cancels the work for it.

    One task listens for all works, from a tenth of a second after the first one began to
    `stop_listening`.

    Args:
        receive: ASGI's `receive`. The request's body must have been read.
    """

    __slots__ = ("_cancel", "_is_gone", "_listening", "_receive", "_timer")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._timer: asyncio.TimerHandle | None = None
        self._listening: asyncio.Task[None] | None = None
        self._cancel: Callable[[], None] | None = None
        self._is_gone = False

    async def while_connected(self, work: Awaitable[Result]) -> Result:
        """Await `work` in the calling task; cancel it if the client disconnects or already has.

        Raises:
            ClientGone: the client disconnected first; `work` was cancelled and has ended.
        """
        cancellation = SelfCancel()
        loop = asyncio.get_running_loop()
        late: asyncio.Handle | None = None
        if self._is_gone:  # cancel at the first suspension; without one the work is done
            late = loop.call_soon(cancellation.request)
        elif self._timer is None:
            self._timer = loop.call_later(_LISTEN_AFTER_S, self._start_listening)
        self._cancel = cancellation.request
        try:
            return await work
        except asyncio.CancelledError:
            if cancellation.consume():
                raise ClientGone from None
            raise
        finally:
            self._cancel = None
            if late is not None:
                late.cancel()

    def stop_listening(self) -> None:
        """End the task, after the last work."""
        if self._timer is not None:
            self._timer.cancel()
        listening, self._listening = self._listening, None  # else a cycle through its traceback
        if listening is not None:
            listening.cancel()

    def _start_listening(self) -> None:
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        if self._cancel is not None:
            self._cancel()


LARGE_BYTES = 1 << 16
"""Size from which bodies take turns. Smaller ones take 20 ms at most."""


class Turns:
    """Lets one large body be read at a time, the shortest first.

    After each one as much time passes as its reading took: large bodies take half of the event
    loop at most. A thread would not help, because the parser of JSON holds Python's lock.

    Args:
        clock: measures the reading, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, size_bytes: int, receive: Receive) -> AsyncIterator[None]:
        """Wait for the turn of a body, and end it; a small one does not wait.

        Raises:
            ClientGone: the client disconnected first.
        """
        if size_bytes < LARGE_BYTES:
            yield
            return
        if self._is_taken:
            await self._wait(size_bytes, ClientConnection(receive))
        self._is_taken = True
        start_s = self._clock()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(self._clock() - start_s, self._pass_on)

    async def _wait(self, size_bytes: int, client: ClientConnection) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size_bytes, next(self._numbers), turn))
        try:
            await client.while_connected(turn)
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise
        finally:
            client.stop_listening()

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
"""A comment of server-sent events, which clients ignore."""


class EncodedBody:
    """Encodes the answers of one call as chunks, at least one. The first one decides the status.

    Open it once, then iterate or close it. A later error becomes the last chunk, if the protocol
    can represent it.

    Args:
        items: items of the answers; those that come together share a chunk.

    Attributes:
        over: True once the last chunk is known.
    """

    def __init__(
        self, items: AsyncGenerator[list[AnswerItem], None], writer: Writer, answers: int
    ) -> None:
        self._items = items
        self._writer = writer
        self._answers = answers
        self._first: asyncio.Task[bytes] | None = None
        self.over = False

    async def open(self, client: ClientConnection, limit_s: float | None = None) -> None:
        """Wait for the first chunk, at most `limit_s`.

        Raises:
            ClientGone: the client disconnected first; the answers are closed.
            Exception: the answers failed before their first chunk; they are closed.
        """
        loop = asyncio.get_running_loop()
        opened = loop.create_future()

        def wake() -> None:
            if not opened.done():
                opened.set_result(None)

        async def begin() -> bytes:
            try:
                return await self._next()
            finally:
                wake()  # a callback of the task would run a round of the loop later

        first = self._first = loop.create_task(begin())
        timer = None if limit_s is None else loop.call_later(limit_s, wake)
        try:
            await client.while_connected(opened)
            if first.done():
                first.result()
        except BaseException:
            client.stop_listening()
            await self.aclose()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def __aiter__(self) -> EncodedBody:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        if first is None and self.over:
            raise StopAsyncIteration
        try:
            return await (self._next() if first is None else first)
        except TrussError as error:
            self.over = True
            drop_tracebacks(error)
            return self._writer.error(error)
        except Exception:
            self.over = True
            logger.exception("unhandled exception in a stream")
            return self._writer.error(internal_error())

    async def aclose(self) -> None:
        """Cancel the answers, including a pending first chunk."""
        first, self._first = self._first, None  # kept, its error's traceback would lead back here
        if first is not None:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await self._items.aclose()

    async def _next(self) -> bytes:
        chunk = b""
        async for items in self._items:
            for item in items:
                chunk += self._writer.push(item)
                self._answers -= isinstance(item, GenerationEnd)
            if chunk and self._answers:  # else the end follows at once
                return chunk
        self.over = True
        return chunk + self._writer.end()


def internal_error() -> InternalError:
    """Build the error of an unhandled exception, without its message."""
    return InternalError("internal server error; see the server log.")


class StreamedResponse(StreamingResponse):
    """A streaming response that aborts visibly.

    If `body` raises a `TrussError`, or the client does not read, the server closes the connection
    without the closing chunk, so that clients detect the incomplete answer.

    Args:
        body: at least one chunk; always closed at the end.
        keep_alive_s: silence after which an event stream sends a comment; None disables it.
        reader_timeout_s: maximum time for the client to read one chunk.
        client: the client, if a task listens for its disconnect already.
        trace: of the call, which ends with the response.
    """

    def __init__(
        self,
        body: EncodedBody,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        client: ClientConnection | None = None,
        keep_alive_s: float | None = None,
        reader_timeout_s: float = math.inf,
        trace: CallTrace | None = None,
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._body = body
        self._client = client
        self._trace = trace
        self._keep_alive_s = math.inf if keep_alive_s is None else keep_alive_s
        self._reader_timeout_s = reader_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until the client disconnects."""
        client = self._client or ClientConnection(receive)
        try:
            await client.while_connected(self.stream_response(send))
        except ClientGone:
            if self._trace is not None:
                self._trace.client_left()
        finally:
            client.stop_listening()
            if self._trace is not None:
                self._trace.end()

    async def stream_response(self, send: Send) -> None:
        """Send the headers, then each chunk."""
        try:
            async with aclosing(self._body) as chunks:
                watch = _Watch(send, self._keep_alive_s, self._reader_timeout_s)
                try:
                    await watch.send(
                        {
                            "type": "http.response.start",
                            "status": self.status_code,
                            "headers": self.raw_headers,
                        }
                    )
                    async for chunk in chunks:
                        more = not self._body.over
                        await watch.send(
                            {"type": "http.response.body", "body": chunk, "more_body": more}
                        )
                except asyncio.CancelledError:
                    if watch.cancellation.consume():
                        raise SlowReader from None
                    raise
                finally:
                    await watch.stop()
        except TrussError as error:
            logger.warning("response aborted: %s: %s", error.code, error.message)
            drop_tracebacks(error)
        except SlowReader:
            logger.warning(
                "response aborted: client read nothing for %g s (serving.reader_timeout_s)",
                self._reader_timeout_s,
            )


class SlowReader(Exception):
    """The client exceeded the read timeout."""


class _Watch:
    """Wraps ASGI's `send`: fills silence with comments, and times out slow readers.

    Per message only the time is recorded. One timer, re-armed when it fires, checks for silence of
    the engine and for a slow client.

    Args:
        keep_alive_s: silence after which a comment is sent, for event streams only. One is sent at
            once if nothing follows the headers.
        reader_timeout_s: maximum time for the client to read one message.

    Attributes:
        cancellation: cancels the creating task when the client exceeds that time.
    """

    def __init__(self, send: Send, keep_alive_s: float, reader_timeout_s: float) -> None:
        self.cancellation = SelfCancel()
        loop = asyncio.get_running_loop()
        self._send = send
        self._keep_alive_s = keep_alive_s
        self._reader_timeout_s = reader_timeout_s
        self._loop = loop
        self._time = loop.time
        self._sending = False
        self._due = math.inf  # when this has lasted too long
        self._comment: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle = loop.call_soon(self._look)

    async def send(self, message: Message) -> None:
        """Send a message after a pending comment."""
        if self._comment is not None:
            await self._comment
        await self._timed(message)

    async def stop(self) -> None:
        """Cancel the timer and a pending comment."""
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            await asyncio.gather(self._comment, return_exceptions=True)

    async def _timed(self, message: Message) -> None:
        self._sending = True
        self._due = self._time() + self._reader_timeout_s
        await self._send(message)
        self._sending = False
        self._due = self._time() + self._keep_alive_s
        if message["type"] == "http.response.start" and self._keep_alive_s < math.inf:
            self._due = -math.inf

    def _look(self) -> None:
        now = self._time()
        if now >= self._due:
            if self._sending:
                self.cancellation.request()
                return
            self._sending, self._due = True, now + self._reader_timeout_s
            self._comment = self._loop.create_task(self._keep_alive())
        # The current state may end at once, and the next one has its own limit.
        next_limit_s = self._keep_alive_s if self._sending else self._reader_timeout_s
        look_again = min(self._due, now + next_limit_s)
        if look_again < math.inf:
            self._timer = self._loop.call_at(look_again, self._look)

    async def _keep_alive(self) -> None:
        await self._timed(
            {"type": "http.response.body", "body": KEEP_ALIVE_COMMENT, "more_body": True}
        )
        self._comment = None


logger = logging.getLogger(__name__)

Choose = Callable[[Request, Mapping[str, Any]], ApiAdapter]
"""Selects the protocol by request and body; the body is empty if it is not a JSON object."""

CLIENT_GONE_STATUS = 499
REQUEST_ID_HEADER = "X-Request-Id"
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Endpoint:
    """Handles the requests of one route.

    Args:
        turns: turns of the large bodies of all routes.
        choose: selects another protocol by request; None for a route with one protocol.
        id_headers: headers for the request's id.
    """

    def __init__(
        self,
        service: Service,
        turns: Turns,
        default: ApiAdapter,
        choose: Choose | None = None,
        *,
        id_headers: Sequence[str] = (REQUEST_ID_HEADER,),
    ) -> None:
        self._service = service
        self._turns = turns
        self._default = default
        self._choose = choose
        self._id_headers = [name.lower().encode() for name in id_headers]

    async def __call__(self, request: Request) -> Response:
        """Return the response; errors become responses too."""
        call_id = secrets.token_hex(16)
        adapter = self._default
        tracing, error_code = self._service.tracing, None
        path = request.scope["path"]
        trace = tracing.begin(request.headers, path, call_id) if tracing is not None else None
        response: Response | None = None
        try:
            async with self._turns.turn(len(await request.body()), request.receive):
                body, problem = self._parse(request, await request.body())
                if self._choose is not None:
                    adapter = self._choose(request, body)
                try:
                    if problem is not None:
                        raise problem
                    call = adapter.read(body, request.headers.get("accept", ""), call_id)
                except TrussError as error:
                    self._service.metrics.refused(adapter.name, call_id, error)
                    raise
            if trace is not None:
                trace.describe(call.requests, is_streamed=call.media_type != JSON_MEDIA_TYPE)
            response = await self._respond(request, call, adapter.name, call_id, trace)
        except TrussError as error:
            error_code = error.code
            response = _error_response(error, adapter)
            drop_tracebacks(error)
        except ClientGone:  # the status appears in the access log only
            error_code = "cancelled"
            response = Response(status_code=CLIENT_GONE_STATUS)
        except Exception:
            logger.exception("unhandled exception")
            error_code = InternalError.code
            response = _error_response(internal_error(), adapter)
        finally:
            if trace is not None:
                trace.responds(response.status_code if response else None, error_code)
                if not isinstance(response, StreamedResponse):
                    trace.end()
        response.raw_headers += [(name, call_id.encode()) for name in self._id_headers]
        return response

    def _parse(self, request: Request, raw: bytes) -> tuple[dict[str, Any], TrussError | None]:
        """Return the JSON object, or an empty one and the error."""
        if (refusal := request.scope.get(REFUSAL)) is not None:
            return {}, refusal
        try:
            return parse_json_object(raw, self._service.limits.max_body_bytes), None
        except TrussError as error:
            return {}, error

    async def _respond(
        self,
        request: Request,
        call: Call,
        protocol: str,
        call_id: str,
        trace: CallTrace | None,
    ) -> Response:
        limits = self._service.limits
        items = self._service.generator.generate(call.requests, protocol, call_id, trace)
        answers = sum(request.n for request in call.requests)
        answer = EncodedBody(items, call.writer, answers)
        # Only event streams have comments, which can fill silence.
        keep_alive_s = limits.keep_alive_s if call.media_type == SSE_MEDIA_TYPE else None
        client = ClientConnection(request.receive)
        await answer.open(client, keep_alive_s)
        if answer.over and call.media_type != TEXT_MEDIA_TYPE:  # text is chunked in any case
            client.stop_listening()
            headers = None if call.media_type == JSON_MEDIA_TYPE else _UNBUFFERED
            return Response(await anext(answer), 200, headers, call.media_type)
        return StreamedResponse(
            answer,
            call.media_type,
            _UNBUFFERED,
            client=client,
            keep_alive_s=keep_alive_s,
            reader_timeout_s=limits.reader_timeout_s,
            trace=trace,
        )


def _error_response(error: TrussError, adapter: ApiAdapter) -> JSONResponse:
    """Build the response of an error before the first byte of an answer."""
    retry_after = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return JSONResponse(adapter.error_body(error), error.status, retry_after)
