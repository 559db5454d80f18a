"""Handle one HTTP request in any protocol."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trtllm_truss.endpoints.disconnect import Client, ClientGone
from trtllm_truss.endpoints.streaming import AnswerStream, EncodedAnswer, internal_error
from trtllm_truss.endpoints.turns import Turns
from trtllm_truss.errors import TrussError, drop_tracebacks
from trtllm_truss.guard.bodies import REFUSAL
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    ApiAdapter,
    Call,
)
from trtllm_truss.protocols.json_body import parse_json_object
from trtllm_truss.serving.service import Service

logger = logging.getLogger(__name__)

Choose = Callable[[Request, Mapping[str, Any]], ApiAdapter]
"""Selects the protocol by request and body; the body is empty if it is not a JSON object."""

CLIENT_GONE_STATUS = 499
REQUEST_ID_HEADER = "X-Request-Id"
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Endpoint:
    """Handles the requests of one route.

    Args:
        service: the running service.
        turns: turns of the large bodies of all routes.
        default: protocol of the route.
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
                    self._service.metrics.refused(adapter.name, error.code)
                    raise
            response = await self._respond(request, call, adapter.name, call_id)
        except TrussError as error:
            response = _error_response(error, adapter)
            drop_tracebacks(error)
        except ClientGone:  # the status appears in the access log only
            response = Response(status_code=CLIENT_GONE_STATUS)
        except Exception:
            logger.exception("unhandled exception")
            response = _error_response(internal_error(), adapter)
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

    async def _respond(self, request: Request, call: Call, protocol: str, call_id: str) -> Response:
        limits = self._service.limits
        items = self._service.generator.generate(call.requests, protocol, call_id)
        answers = sum(request.n for request in call.requests)
        answer = EncodedAnswer(items, call.writer, answers)
        # Only event streams have comments, which can fill silence.
        keep_alive_s = limits.keep_alive_s if call.media_type == SSE_MEDIA_TYPE else None
        client = Client(request.receive)
        await answer.open(client, keep_alive_s)
        if answer.over and call.media_type != TEXT_MEDIA_TYPE:  # text is chunked in any case
            client.stop_listening()
            headers = None if call.media_type == JSON_MEDIA_TYPE else _UNBUFFERED
            return Response(await anext(answer), 200, headers, call.media_type)
        return AnswerStream(
            answer,
            call.media_type,
            _UNBUFFERED,
            client=client,
            keep_alive_s=keep_alive_s,
            reader_timeout_s=limits.reader_timeout_s,
        )


def _error_response(error: TrussError, adapter: ApiAdapter) -> JSONResponse:
    """Build the response of an error before the first byte of an answer."""
    retry_after = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return JSONResponse(adapter.error_body(error), error.status, retry_after)
