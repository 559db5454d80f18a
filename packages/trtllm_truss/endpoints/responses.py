"""Errors and streams as responses of Starlette."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from trtllm_truss.errors import TrussError
from trtllm_truss.protocols.frames import error_body

logger = logging.getLogger(__name__)

CLIENT_GONE_STATUS = 499


def error_response(error: TrussError) -> JSONResponse:
    """An error that was found before the first byte of an answer."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return JSONResponse(error_body(error), status_code=error.status, headers=headers)


def client_gone_response() -> Response:
    """For nobody: the client has left. The status appears in the access log alone."""
    return Response(status_code=CLIENT_GONE_STATUS)


class AnswerStream(StreamingResponse):
    """A stream that can break off visibly.

    When `body` raises a `TrussError`, the response is left incomplete: the server closes the
    connection without the closing chunk, so that no client takes the answer for whole.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(body, media_type=media_type, headers=headers)
        self._body = body

    async def stream_response(self, send: Send) -> None:
        """Sends the head, then each chunk as it comes."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async with aclosing(self._body) as chunks:
            try:
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TrussError as error:
                logger.warning("answer broken off: %s: %s", error.code, error.message)
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
