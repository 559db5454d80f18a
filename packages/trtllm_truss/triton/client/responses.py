"""Reads the messages that one generation gives back."""

from __future__ import annotations

from array import array

from tritonclient.grpc import service_pb2

from trtllm_truss.triton.client.failures import from_stream_text
from trtllm_truss.triton.client.request import EngineChunk
from trtllm_truss.triton.client.tensors import decode_response, pack_ids

_parse = service_pb2.ModelStreamInferResponse.FromString
_ID_BYTES = 4


class ResponseReader:
    """Takes in serialized ``ModelStreamInferResponse`` messages of one call.

    While an answer streams, one message differs from the one before in the bytes of its token
    alone. Such a message is recognised by these bytes and not parsed: a tenth of the time.
    """

    __slots__ = ("_head", "_size", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._size = -1

    def read_token(self, payload: bytes, into: array[int]) -> bool:
        """Appends the token of a message that is like the last one; False if it is not."""
        if (
            len(payload) != self._size
            or not payload.startswith(self._head)
            or not payload.endswith(self._tail)
        ):
            return False
        start = len(self._head)
        into.frombytes(payload[start : start + _ID_BYTES])
        return True

    def read(self, payload: bytes) -> EngineChunk:
        """Parses any message.

        Raises:
            TrussError: it carries an error.
            ValueError: its tensors do not fit together.
        """
        message = _parse(payload)
        if message.error_message:
            raise from_stream_text(message.error_message)
        chunk = decode_response(message.infer_response)
        self._remember(payload, chunk)
        return chunk

    def _remember(self, payload: bytes, chunk: EngineChunk) -> None:
        self._size = -1
        if len(chunk.token_ids) != 1 or chunk.final or chunk.log_probs:
            return
        token = pack_ids(chunk.token_ids)
        start = payload.find(token)
        if start == payload.rfind(token):  # else it cannot be told from the rest
            self._head, self._tail = payload[:start], payload[start + _ID_BYTES :]
            self._size = len(payload)
