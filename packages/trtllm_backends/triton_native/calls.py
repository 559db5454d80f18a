"""Requests to other models of the server that runs this process.

They use the server's gRPC port instead of `pb_utils.InferenceRequest`: with several of those at
once, the stub of Triton 24.10 corrupts its memory within minutes, and one at a time would serialize
requests. The tensors have the form of Triton's protocol, independent of Triton's stub.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from trtllm_truss.errors import InvalidRequest, TrussError
from trtllm_truss.triton.client.failures import from_stream_text
from trtllm_truss.triton.client.tensors import pack_texts
from trtllm_truss.triton.protobuf import service_pb2


class Value(NamedTuple):
    """One tensor without its name.

    Attributes:
        datatype: as in Triton's protocol, such as INT32.
        shape: includes the batch dimension.
        data: little-endian bytes of the values; strings are prefixed with their length.
    """

    datatype: str
    shape: tuple[int, ...]
    data: bytes


def from_array(array: NDArray[Any]) -> Value:
    """Convert an array; objects are bytes and become strings."""
    is_text = array.dtype == np.object_
    data = pack_texts(array.ravel().tolist()) if is_text else array.tobytes()
    return Value(np_to_triton_dtype(array.dtype), array.shape, data)


def to_array(value: Value) -> NDArray[Any]:
    """Convert a value other than text."""
    return np.frombuffer(value.data, triton_to_np_dtype(value.datatype)).reshape(value.shape)


def integer(number: int) -> Value:
    """Return INT32 [1, 1]."""
    return from_array(np.array([[number]], np.int32))


def flag(truth: bool) -> Value:
    """Return BOOL [1, 1]."""
    return from_array(np.array([[truth]], np.bool_))


ENGINE_OUTPUTS = ("output_ids", "sequence_length")
"""`tensorrt_llm` requires these to be requested."""

_METHOD = "/inference.GRPCInferenceService/{}"
_ALL_MESSAGES = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
"""Logits and prompt tables are large."""


class Models:
    """Client for the models of one server, for use inside one event loop.

    tritonclient's generated `service_pb2_grpc` refuses a grpcio older than the one that generated
    it. In TensorRT-LLM's Python, where these models run with a checkpoint, the image determines
    grpcio's version: 1.80 in 26.04 and 26.05, whereas tritonclient 2.73 requires 1.81.1.

    Args:
        address: ``host:port`` of the server's gRPC endpoint.
    """

    def __init__(self, address: str) -> None:
        channel = grpc.aio.insecure_channel(address, options=_ALL_MESSAGES)
        self._infer = channel.unary_unary(
            _METHOD.format("ModelInfer"),
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        self._infer_stream = channel.stream_stream(
            _METHOD.format("ModelStreamInfer"),
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )

    async def ask(
        self, model: str, inputs: Mapping[str, Value], outputs: Iterable[str]
    ) -> dict[str, Value]:
        """Call a model that sends one response.

        Raises:
            InvalidRequest: the model refused the request.
            TrussError: it failed.
        """
        try:
            return _values(await self._infer(_message(model, "", inputs, outputs)))
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error

    async def generate(
        self, model: str, request_id: str, inputs: Mapping[str, Value], outputs: Iterable[str]
    ) -> AsyncGenerator[tuple[dict[str, Value], bool]]:
        """Call the engine, and yield each response's tensors and whether it is the last.

        Responses without tensors are skipped.

        Raises:
            InvalidRequest: the engine refused the request.
            TrussError: the engine failed.
        """
        message = _message(model, request_id, inputs, outputs)
        try:
            async for response in self._infer_stream(iter((message,))):
                if response.error_message:
                    raise from_stream_text(response.error_message)
                if response.infer_response.outputs:
                    last = response.infer_response.parameters["triton_final_response"].bool_param
                    yield _values(response.infer_response), last
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error

    async def stop(self, model: str, request_id: str) -> None:
        """Stop the request with that id in the engine; its last response is still to come."""
        inputs = {
            "input_ids": integer(0),
            "input_lengths": integer(1),
            "request_output_len": integer(1),
            "stop": flag(True),
        }
        async for _ in self.generate(model, request_id, inputs, ENGINE_OUTPUTS):
            pass


def _message(
    model: str, request_id: str, inputs: Mapping[str, Value], outputs: Iterable[str]
) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in inputs.items():
        message.inputs.add(name=name, datatype=value.datatype, shape=value.shape)
        message.raw_input_contents.append(value.data)
    for name in outputs:
        message.outputs.add(name=name)
    return message


def _values(response: service_pb2.ModelInferResponse) -> dict[str, Value]:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {each.name: Value(each.datatype, tuple(each.shape), raw) for each, raw in pairs}


def _error(error: grpc.aio.AioRpcError) -> TrussError:
    text = error.details() or str(error.code())
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(text)
    return from_stream_text(text)
