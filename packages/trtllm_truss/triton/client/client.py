"""One asynchronous token stream per request to a Triton server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from trtllm_truss.triton.client.failures import unavailable
from trtllm_truss.triton.client.grpc_connection import GrpcConnection
from trtllm_truss.triton.client.request import EngineRequest
from trtllm_truss.triton.client.response_stream import ResponseStream
from trtllm_truss.triton.client.tensors import encode_request, encode_stop
from trtllm_truss.triton.model_repository.contract import INPUTS, MODEL_NAME
from trtllm_truss.triton.model_repository.schema import rows_for

_STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
_ORDER_LIMIT_S = 0.3
"""For the answer to `stop`; with what it takes to notice a cancellation, below half a second."""
_STOP_LIMIT_S = 2.0
"""For the end of a request that the engine has been told to stop: an iteration and more."""
_END_LIMIT_S = 1.0


class TritonClient:
    """Requests to one model of one server, over one connection.

    The connection is opened at first use, inside the running event loop; a client belongs to that
    loop. A request is stopped in the engine as soon as its answer is let go of, however that is.
    """

    def __init__(
        self,
        address: str,
        *,
        model_name: str = MODEL_NAME,
        tensorrt_llm_version: str | None,
    ) -> None:
        """Names the server; nothing is opened.

        Args:
            address: ``host:port`` of Triton's gRPC endpoint.
            model_name: the model to ask.
            tensorrt_llm_version: the version that the server's repository was rendered for.
        """
        self._address = address
        self._model_name = model_name
        self._declared = frozenset(row.name for row in rows_for(INPUTS, tensorrt_llm_version))
        self._connection: GrpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._knows_stop = False  # other backends take it for one more request, with tokens
        self._endings: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def answer(
        self,
        request: EngineRequest,
        *,
        on_end: Callable[[], None] | None = None,
        on_stopped: Callable[[int], None] | None = None,
        on_sign: Callable[[], None] | None = None,
    ) -> AsyncGenerator[ResponseStream, None]:
        """Sends one generation; leaving the context before the end stops it.

        Args:
            request: what to generate.
            on_end: called once, as soon as the engine is done, however slowly the answer is read.
            on_stopped: called once the engine has stopped a request that was let go of before its
                end, with the tokens that it gave and nobody read.
            on_sign: called at each response without tokens, see `ResponseStream`.

        Raises:
            EngineUnavailable: the server cannot be reached.
        """
        connection = await self._connected()
        answer = ResponseStream(on_end, on_sign)
        message = encode_request(request, model_name=self._model_name, declared=self._declared)
        call = connection.call(_STREAM_INFER, message.SerializeToString(), answer)
        try:
            yield answer
        finally:
            if not answer.over:
                self._let_go(connection, call, answer, request.request_id, on_stopped)

    async def close(self) -> None:
        """Closes the connection; answers in flight end with EngineUnavailable."""
        self._closed = True
        if self._endings:
            await asyncio.wait(self._endings, timeout=_END_LIMIT_S)
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> GrpcConnection:
        if self._connection is not None and self._connection.is_usable and not self._closed:
            return self._connection
        async with self._connecting:
            if self._closed:
                raise unavailable("The connection to the engine was closed.")
            if self._connection is None or not self._connection.is_usable:
                try:
                    self._connection = await GrpcConnection.connect(self._address)
                except OSError as error:
                    raise unavailable(f"The engine cannot be reached: {error}.") from error
            return self._connection

    def _let_go(
        self,
        connection: GrpcConnection,
        call: int,
        answer: ResponseStream,
        request_id: str,
        on_stopped: Callable[[int], None] | None,
    ) -> None:
        """Sees to it that a call ends, without waiting for that."""
        if answer.is_final:  # the server is about to end it
            return
        if self._closed:
            connection.cancel(call)
            return
        ending = asyncio.create_task(self._end(connection, call, answer, request_id))
        if on_stopped is not None:
            ending.add_done_callback(lambda _: on_stopped(answer.unread))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(
        self, connection: GrpcConnection, call: int, answer: ResponseStream, request_id: str
    ) -> None:
        """Has the engine end a request, and cancels its call only if it does not.

        A cancellation that meets a response on its way can abort the whole of Triton (2.51 under
        load, up to once in a thousand: ``sync.cc:105 ASSERTION FAILED: prior > 0``, or a
        segmentation fault). The ``stop`` input of the backend is harmless.
        """
        stop = encode_stop(request_id, model_name=self._model_name)
        order = ResponseStream()
        if connection.is_usable:
            stop_call = connection.call(_STREAM_INFER, stop.SerializeToString(), order)
            if await order.comes_to_end(_ORDER_LIMIT_S):
                self._knows_stop = not order.unread
            if not await answer.comes_to_end(_STOP_LIMIT_S if self._knows_stop else 0):
                connection.cancel(call)
            if not await order.comes_to_end(_END_LIMIT_S):
                connection.cancel(stop_call)
