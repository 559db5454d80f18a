"""Check a Triton server and one model for readiness."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from google.protobuf.message import DecodeError, Message

from trtllm_truss.triton.client.failures import StatusCode
from trtllm_truss.triton.client.grpc_connection import GrpcConnection
from trtllm_truss.triton.protobuf import service_pb2
from trtllm_truss.triton.server.ports import LOOPBACK, Ports

_SERVICE = "/inference.GRPCInferenceService/"
_TIMEOUT_S = 0.5


def is_ready(ports: Ports, model_name: str, *, server_id: str) -> bool:
    """Return True if server and model are ready; any connection error counts as not ready.

    Checks over gRPC once every port is open; Triton opens its metrics port last. May be called
    where an event loop runs.
    """
    if not all(_is_open(port) for port in (ports.metrics, ports.http) if port):
        return False

    async def question() -> bool:
        return await asyncio.wait_for(_is_ready(ports.grpc, model_name, server_id), _TIMEOUT_S)

    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(lambda: asyncio.run(question())).result()
        except (OSError, asyncio.TimeoutError, DecodeError, RuntimeError):  # the last: no thread
            return False


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), _TIMEOUT_S).close()
    except OSError:
        return False
    return True


async def _is_ready(port: int, model_name: str, server_id: str) -> bool:
    """Check the server's name last: another server may have taken the port, and would be ready."""
    with closing(await GrpcConnection.connect(f"{LOOPBACK}:{port}")) as connection:
        server, model = service_pb2.ServerReadyResponse(), service_pb2.ModelReadyResponse()
        metadata = service_pb2.ServerMetadataResponse()
        model_request = service_pb2.ModelReadyRequest(name=model_name)
        await _ask(connection, "ServerReady", service_pb2.ServerReadyRequest(), server)
        await _ask(connection, "ModelReady", model_request, model)
        await _ask(connection, "ServerMetadata", service_pb2.ServerMetadataRequest(), metadata)
        return bool(server.ready and model.ready and metadata.name == server_id)


async def _ask(
    connection: GrpcConnection, method: str, request: Message, response: Message
) -> None:
    """Fill the response of a unary call; leave it empty if the call fails."""
    reply = _Reply()
    connection.call(_SERVICE + method, request.SerializeToString(), reply)
    response.ParseFromString(await reply.payload)


class _Reply:
    def __init__(self) -> None:
        self.payload: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._message = b""

    def message(self, payload: bytes) -> bool:
        self._message = payload
        return False

    def ended(self, status: StatusCode, details: str) -> None:
        if not self.payload.done():
            self.payload.set_result(self._message if status is StatusCode.OK else b"")
