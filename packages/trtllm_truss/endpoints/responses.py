"""Errors and streams as responses of Starlette."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trtllm_truss.endpoints.disconnect import ClientGone, while_connected
from trtllm_truss.endpoints.watched_send import SlowReader, watched
from trtllm_truss.errors import TrussError

logger = logging.getLogger(__name__)

CLIENT_GONE_STATUS = 499


def error_response(error: TrussError, body: Any) -> JSONResponse:
    """An error that was found before the first byte of an answer; `body` says it as JSON."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return JSONResponse(body, status_code=error.status, headers=headers)


def client_gone_response() -> Response:
    """For nobody: the client has left. The status appears in the access log alone."""
    return Response(status_code=CLIENT_GONE_STATUS)


class AnswerStream(StreamingResponse):
    """A stream that can break off visibly.

    When `body` raises a `TrussError`, or the client does not read, the response is left
    incomplete: the server closes the connection without the closing chunk, so that no client takes
    the answer for whole.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        keep_alive_s: float | None = None,
        reader_timeout_s: float = math.inf,
    ) -> None:
        """Describes a response; nothing is sent.

        Args:
            body: its chunks; closed in the end, whatever that is.
            media_type: of the body.
            headers: further ones.
            keep_alive_s: silence after which a stream of events sends a comment; None for never.
            reader_timeout_s: how long one chunk may wait for the client to read.
        """
        super().__init__(body, media_type=media_type, headers=headers)
        self._body = body
        self._keep_alive_s = math.inf if keep_alive_s is None else keep_alive_s
        self._reader_timeout_s = reader_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer as long as there is somebody to read it."""
        with suppress(ClientGone):
            await while_connected(receive, self.stream_response(send))

    async def stream_response(self, send: Send) -> None:
        """Sends the head, then each chunk as it comes."""
        try:
            async with (
                aclosing(self._body) as chunks,
                watched(
                    send,
                    keep_alive_s=self._keep_alive_s,
                    reader_timeout_s=self._reader_timeout_s,
                ) as send,
            ):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TrussError as error:
            logger.warning("answer broken off: %s: %s", error.code, error.message)
        except SlowReader:
            logger.warning(
                "answer broken off: its client read nothing for %g s (serving.reader_timeout_s)",
                self._reader_timeout_s,
            )
