"""One asynchronous token stream per request to a Triton server.

The generated gRPC stubs are used directly: reading ids straight from ``raw_output_contents`` takes
in about twice as many tokens per second as ``tritonclient``'s own classes do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.triton.contract import INPUTS, MODEL_NAME
from trtllm_truss.triton.failures import from_rpc_error, from_stream_text, unavailable
from trtllm_truss.triton.request import EngineChunk, EngineRequest
from trtllm_truss.triton.schema import rows_for
from trtllm_truss.triton.tensors import decode_response, encode_request

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


class TritonClient:
    """Requests to one model of one server, over one connection.

    The connection is opened at first use, inside the running event loop; a client belongs to that
    loop. A request is cancelled in Triton as soon as its stream is closed, however it is left.
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

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineChunk, None]:
        """Streams one generation; the last chunk has ``final`` set.

        Close the iterator (``contextlib.aclosing``) to cancel before the end; cancelling the task
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
        try:
            await call.write(message)
            await call.done_writing()
            responses = aiter(call)
            async for response in responses:
                if response.error_message:
                    await _read_to_end(responses)
                    raise from_stream_text(response.error_message)
                chunk = decode_response(response.infer_response)
                if chunk.final:
                    await _read_to_end(responses)
                    yield chunk
                    return
                yield chunk
            raise unavailable("The engine ended its answer without finishing it.")
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure
        except asyncio.CancelledError:
            if self._closed:  # closing the channel cancels its calls, not the tasks behind them
                raise unavailable("The connection to the engine was closed.") from None
            raise
        finally:
            call.cancel()

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
        if self._channel is not None:
            await self._channel.close(None)

    def _open(self) -> service_pb2_grpc.GRPCInferenceServiceStub:
        if self._closed:
            raise unavailable("The connection to the engine was closed.")
        if self._stub is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub


async def _read_to_end(responses: AsyncIterator[object]) -> None:
    """Lets Triton end a call whose last response was read, so that there is nothing to cancel.

    A cancellation that meets the end of its own call leaks the request inside Triton, which then
    cannot unload the model, and at times aborts the whole server.
    """
    with contextlib.suppress(asyncio.TimeoutError, grpc.aio.AioRpcError):
        await asyncio.wait_for(anext(responses, None), _END_LIMIT_S)
