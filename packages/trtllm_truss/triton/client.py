"""One asynchronous token stream per request to a Triton server.

The generated gRPC stubs are used directly: reading ids straight from ``raw_output_contents`` takes
in about twice as many tokens per second as ``tritonclient``'s own classes do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.triton.contract import INPUTS, MODEL_NAME
from trtllm_truss.triton.failures import from_rpc_error, from_stream_text, unavailable
from trtllm_truss.triton.request import EngineChunk, EngineRequest
from trtllm_truss.triton.responses import Responses
from trtllm_truss.triton.schema import rows_for
from trtllm_truss.triton.tensors import decode_response, encode_request, encode_stop

# No keepalive pings: on loopback a dead server closes the connection at once, and Triton ends
# connections that ping more often than every five minutes ("too_many_pings").
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_READY_TIMEOUT_S = 1.0
_END_LIMIT_S = 1.0
_STOP_LIMIT_S = 0.15


class TritonClient:
    """Requests to one model of one server, over one connection.

    The connection is opened at first use, inside the running event loop; a client belongs to that
    loop. A request is stopped in the engine as soon as its stream is closed, however it is left.
    """

    def __init__(
        self,
        address: str,
        *,
        model_name: str = MODEL_NAME,
        tensorrt_llm_version: str | None = PINNED_VERSION,
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
        self._channel: grpc.aio.Channel | None = None
        self._stub: service_pb2_grpc.GRPCInferenceServiceStub | None = None
        self._closed = False
        self._endings: set[asyncio.Task[None]] = set()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineChunk, None]:
        """Streams one generation; the last chunk has ``final`` set.

        Close the iterator (``contextlib.aclosing``) to stop it before the end; cancelling the task
        that waits for a chunk does the same.

        Raises:
            InvalidRequest: the engine refused a field.
            ContextLengthExceeded: the prompt is too long for the engine.
            QueueFull: Triton's queue is full.
            EngineUnavailable: the server is gone, or the stream ended before its final chunk.
            InternalError: the engine failed in a way that is not known.
        """
        message = encode_request(request, model_name=self._model_name, declared=self._declared)
        call = self._open().ModelStreamInfer()
        responses = Responses(call)
        try:
            await call.write(message)
            await call.done_writing()
            while (response := await responses.next()) is not None:
                if response.error_message:
                    await responses.ended(_END_LIMIT_S)
                    raise from_stream_text(response.error_message)
                chunk = decode_response(response.infer_response)
                if chunk.final:
                    await responses.ended(_END_LIMIT_S)
                    yield chunk
                    return
                yield chunk
            raise unavailable("The engine ended its answer without finishing it.")
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure
        except (ConnectionAbortedError, asyncio.InvalidStateError):
            raise unavailable("The connection to the engine was closed.") from None
        finally:
            self._let_go(call, responses, request.request_id)

    async def is_ready(self) -> bool:
        """Asks whether the model is ready; False if the server gives no answer within a second."""
        request = service_pb2.ModelReadyRequest(name=self._model_name)
        try:
            answer = await self._open().ModelReady(request, timeout=_READY_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.ready)

    async def close(self) -> None:
        """Closes the connection; streams in flight end with EngineUnavailable."""
        self._closed = True
        if self._endings:  # nothing new can be sent on a closed channel, and waits for ever
            await asyncio.wait(self._endings, timeout=_END_LIMIT_S)
        if self._channel is not None:
            await self._channel.close(None)

    def _let_go(self, call: Any, responses: Responses, request_id: str) -> None:
        """Sees to it that a call ends, without waiting for that."""
        if responses.has_ended:
            return
        if self._closed:
            call.cancel()
            return
        ending = asyncio.create_task(self._end(call, responses, request_id))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, call: Any, responses: Responses, request_id: str) -> None:
        """Has the engine end a request, and cancels its call only if it does not.

        A cancellation that meets a response on its way can abort the whole of Triton (2.51 under
        load, once in a thousand: ``sync.cc:105 ASSERTION FAILED: prior > 0``, or a segmentation
        fault). The ``stop`` input of the backend is harmless.
        """
        order = asyncio.create_task(self._order_stop(request_id))
        if not await responses.ended(_STOP_LIMIT_S):
            call.cancel()
        await asyncio.wait([order], timeout=_END_LIMIT_S)
        order.cancel()

    async def _order_stop(self, request_id: str) -> None:
        call = self._open().ModelStreamInfer()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(encode_stop(request_id, model_name=self._model_name))
            await call.done_writing()
            async for _ in call:
                pass

    def _open(self) -> service_pb2_grpc.GRPCInferenceServiceStub:
        if self._closed:
            raise unavailable("The connection to the engine was closed.")
        if self._stub is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub
