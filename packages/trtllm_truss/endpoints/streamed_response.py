"""A streamed HTTP response that a slow reader cannot hold open."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from trtllm_truss.endpoints.connection import ClientConnection, ClientGone
from trtllm_truss.endpoints.encoded_body import KEEP_ALIVE_COMMENT, EncodedBody
from trtllm_truss.endpoints.guard import SelfCancel
from trtllm_truss.errors import TrussError, drop_tracebacks

if TYPE_CHECKING:
    from trtllm_truss.observability.tracing import CallTrace

logger = logging.getLogger(__name__)


class StreamedResponse(StreamingResponse):
    """A streaming response whose abort the client notices.

    If `body` raises a `TrussError`, or the client does not read, the server closes the connection
    without the final chunk, so that clients detect the incomplete response.

    Args:
        body: at least one chunk; always closed afterwards.
        keep_alive_s: silence after which an event stream sends a comment; None disables it.
        reader_timeout_s: maximum time for the client to read one chunk.
        client: the client, if a task already listens for its disconnect.
        trace: trace of the call, which ends with the response.
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

    Only the time is recorded per message. One timer, re-armed when it fires, checks for silence of
    the engine and for a slow client.

    Args:
        keep_alive_s: silence after which a comment is sent, for event streams only. A comment is
            sent at once if nothing follows the headers.
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
