"""Handle one HTTP request in any protocol."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trtllm_truss.endpoints.connection import ClientConnection, ClientGone
from trtllm_truss.endpoints.encoded_body import EncodedBody, Turns, internal_error
from trtllm_truss.endpoints.guard import REFUSAL
from trtllm_truss.endpoints.streamed_response import StreamedResponse
from trtllm_truss.errors import InternalError, TrussError, drop_tracebacks
from trtllm_truss.protocols.base import (
    JSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    TEXT_MEDIA_TYPE,
    ApiAdapter,
    Call,
    parse_json_object,
)
from trtllm_truss.serving.service import Service

if TYPE_CHECKING:
    from trtllm_truss.observability.tracing import CallTrace


logger = logging.getLogger(__name__)

Choose = Callable[[Request, Mapping[str, Any]], ApiAdapter]
"""Selects the protocol by request and body; the body is empty if it is not a JSON object."""

CLIENT_GONE_STATUS = 499
REQUEST_ID_HEADER = "X-Request-Id"
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Endpoint:
    """Handles the requests of one route.

    Args:
        service: started.
        turns: queue for the large bodies of all routes.
        choose: selects a protocol by request; None for a route with one protocol.
        id_headers: headers that carry the request's id.
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
        self._generator = service.pipeline.generator
        self._limits = service.limits
        self._metrics = service.metrics
        self._tracing = service.tracing
        self._turns = turns
        self._default = default
        self._choose = choose
        self._id_headers = [name.lower().encode() for name in id_headers]

    async def __call__(self, request: Request) -> Response:
        """Return the response; errors become responses too."""
        call_id = secrets.token_hex(16)
        adapter = self._default
        tracing, error_code = self._tracing, None
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
                    self._metrics.refused(adapter.name, call_id, error)
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
            return parse_json_object(raw, self._limits.max_body_bytes), None
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
        limits = self._limits
        items = self._generator.generate(call.requests, protocol, call_id, trace)
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
    """Build the response for an error before the first byte of output."""
    retry_after = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return JSONResponse(adapter.error_body(error), error.status, retry_after)
