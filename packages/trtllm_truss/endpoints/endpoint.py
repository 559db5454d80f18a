"""One HTTP request from its body to its response, whatever the protocol."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trtllm_truss.endpoints.disconnect import ClientGone, while_connected
from trtllm_truss.endpoints.opening import OpenedAnswer, opened
from trtllm_truss.endpoints.responses import AnswerStream, client_gone_response, error_response
from trtllm_truss.errors import InternalError, TrussError
from trtllm_truss.protocols.base import EVENTS, Dialect, StreamedCall, WholeCall
from trtllm_truss.protocols.json_body import parse_json_object
from trtllm_truss.protocols.writers import StreamWriter, WholeWriter
from trtllm_truss.requests import Finish, Piece
from trtllm_truss.serving.service import Service

logger = logging.getLogger(__name__)

Item = tuple[int, Piece | Finish]
Choose = Callable[[Mapping[str, str], Mapping[str, Any]], Dialect]
"""The dialect of a request with these headers and this body."""

REQUEST_ID_HEADER = "X-Request-Id"
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Endpoint:
    """Answers the requests of one route."""

    def __init__(self, service: Service, choose: Choose) -> None:
        """Binds the endpoint to what answers.

        Args:
            service: the running engine.
            choose: says which protocol a request speaks; of one whose body is no JSON object it
                is asked with an empty one.
        """
        self._service = service
        self._choose = choose

    async def __call__(self, request: Request) -> Response:
        """The response to one request; never raises for what a caller or the engine did."""
        call_id = uuid.uuid4().hex
        dialect = self._choose(request.headers, {})
        try:
            try:
                _release(request)
                body = parse_json_object(await request.body(), self._service.limits.max_body_bytes)
                dialect = self._choose(request.headers, body)
                call = dialect.read(body, request.headers.get("accept", ""), call_id)
            except TrussError as error:
                self._service.metrics.refused(dialect.name, error.code)
                raise
            response = await self._respond(request, call, dialect.name, call_id)
        except TrussError as error:
            response = error_response(error, dialect.error_body(error))
        except ClientGone:
            response = client_gone_response()
        except Exception:
            logger.exception("unforeseen error")
            unforeseen = _unforeseen()
            response = error_response(unforeseen, dialect.error_body(unforeseen))
        response.headers[REQUEST_ID_HEADER] = call_id
        return response

    async def _respond(
        self, request: Request, call: WholeCall | StreamedCall, protocol: str, call_id: str
    ) -> Response:
        answers = self._service.generator.generate(call.requests, protocol, call_id)
        if isinstance(call, WholeCall):
            whole = _whole(answers, call.writer)
            return JSONResponse(await while_connected(request.receive, whole))
        limits = self._service.limits
        # Only a stream of events has comments, by which silence can be filled.
        keep_alive_s = limits.keep_alive_s if call.media_type == EVENTS else None
        chunks = await opened(request, _chunks(answers, call.writer), keep_alive_s)
        return AnswerStream(
            _with_error(chunks, call.writer),
            call.media_type,
            _UNBUFFERED,
            keep_alive_s=keep_alive_s,
            reader_timeout_s=limits.reader_timeout_s,
        )


def _release(request: Request) -> None:
    """Untie a request from itself, so that its body is freed with it and not by a collection.

    Truss keeps a closure over each request in that request's own state.
    """
    with suppress(AttributeError, KeyError):
        del request.state.watch_disconnect


async def _whole(answers: AsyncGenerator[Item, None], writer: WholeWriter) -> Any:
    async with aclosing(answers) as items:
        async for position, item in items:
            writer.push(position, item)
    return writer.body()


async def _chunks(
    answers: AsyncGenerator[Item, None], writer: StreamWriter
) -> AsyncGenerator[bytes, None]:
    """What is to be sent, in at least one chunk."""
    async with aclosing(answers) as items:
        async for position, item in items:
            if chunk := writer.push(position, item):
                yield chunk
    yield writer.end()


async def _with_error(
    opening: OpenedAnswer[bytes], writer: StreamWriter
) -> AsyncGenerator[bytes, None]:
    """The same, and what says that it broke off, once nothing else can."""
    try:
        async with aclosing(opening) as chunks:
            async for chunk in chunks:
                yield chunk
    except TrussError as error:
        yield writer.error(error)
    except Exception:
        logger.exception("unforeseen error in a stream")
        yield writer.error(_unforeseen())


def _unforeseen() -> InternalError:
    return InternalError("an error that is not yours; the server's log tells more.")
