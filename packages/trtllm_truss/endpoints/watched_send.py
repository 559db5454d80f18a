"""A response's `send` that never falls silent and never waits for ever.

Per message it notes the time, nothing more: one timer of the event loop, re-armed when it fires,
looks whether the engine has been silent or the client has not read for too long.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Message, Send

from trtllm_truss.endpoints.cancellation import OwnCancellation

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
"""What a reader of server-sent events skips: a line that begins with a colon is a comment."""


class SlowReader(Exception):
    """The client has read nothing for as long as it may."""


@asynccontextmanager
async def watched(
    send: Send, *, keep_alive_s: float = math.inf, reader_timeout_s: float = math.inf
) -> AsyncIterator[Send]:
    """Gives a `send` for one response whose silences and blocks are looked after.

    Args:
        send: the server's.
        keep_alive_s: silence after which a comment is sent, for streams of events only. One is
            sent at once if there is nothing to send after the head.
        reader_timeout_s: how long one message may wait for the client to read.

    Raises:
        SlowReader: it waited longer. Whatever the block was waiting for has been cancelled.
    """
    cancellation = OwnCancellation()
    watch = _Watch(send, cancellation.request, keep_alive_s, reader_timeout_s)
    try:
        yield watch.send
    except asyncio.CancelledError:
        if cancellation.is_reason():
            raise SlowReader from None
        raise
    finally:
        await watch.stop()


class _Watch:
    """Knows since when a message has been under way, or nothing has been."""

    def __init__(
        self,
        send: Send,
        cancel: Callable[[], None],
        keep_alive_s: float,
        reader_timeout_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._send = send
        self._cancel = cancel
        self._keep_alive_s = keep_alive_s
        self._reader_timeout_s = reader_timeout_s
        self._loop = loop
        self._time = loop.time
        self._sending = False
        self._due = math.inf  # when this has lasted too long
        self._comment: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle = loop.call_soon(self._look)

    async def send(self, message: Message) -> None:
        """Sends a message, after the comment that may be on its way."""
        if self._comment is not None:
            await self._comment
        await self._timed(message)

    async def stop(self) -> None:
        """Ends the watch, and the comment that may be on its way."""
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
                self._cancel()
                return
            self._sending, self._due = True, now + self._reader_timeout_s
            self._comment = self._loop.create_task(self._keep_alive())
        # What goes on now can end at once; what follows it has its own limit.
        next_limit_s = self._keep_alive_s if self._sending else self._reader_timeout_s
        look_again = min(self._due, now + next_limit_s)
        if look_again < math.inf:
            self._timer = self._loop.call_at(look_again, self._look)

    async def _keep_alive(self) -> None:
        await self._timed(
            {"type": "http.response.body", "body": KEEP_ALIVE_COMMENT, "more_body": True}
        )
        self._comment = None
