"""`predict`: plain text as it comes, server-sent events, or one JSON object."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trtllm_truss.endpoints.disconnect import ClientGone, while_connected
from trtllm_truss.endpoints.responses import AnswerStream, client_gone_response, error_response
from trtllm_truss.errors import InternalError, TrussError
from trtllm_truss.protocols.frames import error_event, finish_event, finish_fields, piece_event
from trtllm_truss.protocols.json_body import parse_json_object
from trtllm_truss.protocols.predict import parse_predict, response_form
from trtllm_truss.serving.request import Finish, Piece
from trtllm_truss.serving.service import Service

logger = logging.getLogger(__name__)

Answer = AsyncGenerator[Piece | Finish, None]

_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class PredictEndpoint:
    """Answers predict requests with one service."""

    def __init__(self, service: Service, defaults: Mapping[str, Any]) -> None:
        """Binds the endpoint to what answers.

        Args:
            service: the running engine.
            defaults: request fields that hold where a body leaves them out.
        """
        self._service = service
        self._defaults = defaults

    async def __call__(self, request: Request) -> Response:
        """The response to one request; never raises for what a caller or the engine did."""
        try:
            return await self._respond(request)
        except TrussError as error:
            return error_response(error)
        except ClientGone:
            return client_gone_response()
        except Exception:
            logger.exception("unforeseen error")
            return error_response(_unforeseen())

    async def _respond(self, request: Request) -> Response:
        body = parse_json_object(await request.body())
        generation, stream = parse_predict(body, self._defaults)
        form = response_form(request.headers.get("accept", ""), stream)
        answer = self._service.generator.generate(generation)
        if form == "json":
            return JSONResponse(await while_connected(request, _whole(answer)))
        # The status is still open: an error before the first piece is a real one.
        try:
            first = await while_connected(request, anext(answer))
        except BaseException:
            await answer.aclose()
            raise
        if form == "events":
            return AnswerStream(_events(first, answer), "text/event-stream", _UNBUFFERED)
        return AnswerStream(_text(first, answer), "text/plain; charset=utf-8", _UNBUFFERED)


def _unforeseen() -> InternalError:
    return InternalError("an error that is not yours; the server's log tells more.")


async def _whole(answer: Answer) -> dict[str, Any]:
    """The whole answer as one JSON object."""
    text: list[str] = []
    async with aclosing(answer) as items:
        async for item in items:
            if isinstance(item, Finish):
                return {"text": "".join(text), **finish_fields(item)}
            text.append(item.text)
    raise InternalError("the answer has no end.")


async def _text(first: Piece | Finish, answer: Answer) -> AsyncGenerator[bytes, None]:
    """The text and nothing else."""
    async with aclosing(_from(first, answer)) as items:
        async for item in items:
            if isinstance(item, Piece):
                yield item.text.encode()


async def _events(first: Piece | Finish, answer: Answer) -> AsyncGenerator[bytes, None]:
    """One event a piece, and one last event that says how it ended."""
    try:
        async with aclosing(_from(first, answer)) as items:
            async for item in items:
                yield piece_event(item) if isinstance(item, Piece) else finish_event(item)
    except TrussError as error:
        yield error_event(error)
    except Exception:
        logger.exception("unforeseen error in a stream")
        yield error_event(_unforeseen())


async def _from(first: Piece | Finish, answer: Answer) -> Answer:
    async with aclosing(answer) as items:
        yield first
        async for item in items:
            yield item
