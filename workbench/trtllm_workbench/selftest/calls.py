"""Calls that record what a check needs: HTTP to the served Truss, and to the engine alone.

HTTP calls record status, headers, chunks and times. The engine alone receives and returns token ids
at Triton's gRPC endpoint, without text and HTTP.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.observability.exposition import parse_metrics
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.request_fields import Sampling
from trtllm_truss.triton.client.client import (
    REPEAT_S,
    STREAM_INFER,
    ResponseStream,
    TritonClient,
    block_on,
    call,
    order_stop,
)
from trtllm_truss.triton.client.engine_messages import EngineRequest
from trtllm_truss.triton.client.grpc_connection import GrpcConnection
from trtllm_truss.triton.client.tensors import EngineInputs, encode_request, random_number
from trtllm_truss.triton.protobuf import service_pb2

PREDICT = "/v1/models/model:predict"
READY = "/v1/models/model"
EVENTS = {"Accept": "text/event-stream"}
_READ_BYTES = 65536
_TIMEOUT_S = 120.0
_DONE = "[DONE]"


@dataclass(slots=True)
class HttpReply:
    """One response, read to its end.

    Attributes:
        status: HTTP status.
        headers: by lower-case name.
        body: all received bytes.
        pieces: number of reads in which the body arrived.
        is_cut: the connection ended before the response did.
        first_s: seconds to the first byte of the body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    pieces: int = 0
    is_cut: bool = False
    first_s: float = 0.0

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="strict" if self.status == 200 else "replace")

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[dict[str, Any]]:
        """Return the objects of a body of JSON lines."""
        return [json.loads(line) for line in self.body.splitlines() if line]

    def events(self) -> list[dict[str, Any]]:
        """Return the objects of a body of server-sent events."""
        data = (
            line.removeprefix("data:").strip()
            for frame in self.text.split("\n\n")
            for line in frame.splitlines()
            if line.startswith("data:")
        )
        return [json.loads(text) for text in data if text != _DONE]

    @property
    def complaint(self) -> str:
        """The status and the message of an error, in one short line."""
        text = self.body.decode("utf-8", errors="replace")
        try:
            error = json.loads(text)["error"]
            text = error if isinstance(error, str) else error["message"]
        except (ValueError, KeyError, TypeError):
            pass
        return f"HTTP {self.status}: {text[:300]}"


class Stream:
    """A response read chunk by chunk; `close` disconnects."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            http.client.HTTPException: the connection ended before the response did.
            OSError: the same, or no byte arrived in time.
        """
        while piece := self._response.read1(_READ_BYTES):
            yield piece

    def close(self) -> None:
        """Disconnect at once without reading on."""
        self._response.close()
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Api:
    """The routes of one server on loopback.

    Attributes:
        port: HTTP port.
    """

    port: int

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> HttpReply:
        """Send a body, JSON unless it is bytes, and read the whole response."""
        return self._read("POST", path, body, headers)

    def get(self, path: str) -> HttpReply:
        return self._read("GET", path, None, None)

    @contextmanager
    def stream(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> Iterator[Stream]:
        """Send a body and yield the response once its status has arrived; disconnect afterwards."""
        stream = self.open(path, body, headers)
        try:
            yield stream
        finally:
            stream.close()

    def open(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Stream:
        """As `stream`, but without a context; the caller closes the stream."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_TIMEOUT_S)
        try:
            _send(connection, "POST", path, body, headers)
            return Stream(connection)
        except BaseException:
            connection.close()
            raise

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels.

        Raises:
            LookupError: the page does not contain the metric.
        """
        page = self.get("/metrics/").text
        samples = (sample for family in parse_metrics(page) for sample in family.samples)
        values = [sample.value for sample in samples if sample.name == name]
        if not values:
            raise LookupError(f"/metrics has no {name}")
        return sum(values)

    def is_ready(self) -> bool:
        """Return the result of the platform's health check."""
        try:
            return self.get(READY).status == http.client.OK
        except OSError:
            return False

    def _read(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None
    ) -> HttpReply:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=_TIMEOUT_S)
        started = time.perf_counter()
        try:
            _send(connection, method, path, body, headers)
            stream = Stream(connection)
            reply = HttpReply(stream.status, stream.headers)
            try:
                for piece in stream.pieces():
                    if not reply.pieces:
                        reply.first_s = time.perf_counter() - started
                    reply.body += piece
                    reply.pieces += 1
            except (http.client.HTTPException, OSError):
                reply.is_cut = True
            return reply
        finally:
            connection.close()


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object,
    headers: Mapping[str, str] | None,
) -> None:
    payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(
        method, path, payload, {"Content-Type": "application/json", **(headers or {})}
    )


GREEDY = Sampling(top_k=1)
_LIMIT_S = 120.0
_TICK_S = 0.01
_COUNT_S = 0.5
"""For the end of the order to be counted."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer of the engine.

    Attributes:
        ids: its tokens.
        first_s: seconds to the first token.
    """

    ids: list[int]
    first_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The end of a request that was stopped in the engine.

    Attributes:
        tokens: tokens that had arrived when the order to stop was sent.
        by_stop_s: seconds from the tensor `stop` to the end; None if it did not stop.
        by_cancel_s: seconds from the cancellation of the call to the end; None likewise.
        was_over: the request had finished before.
    """

    tokens: int
    by_stop_s: float | None = None
    by_cancel_s: float | None = None
    was_over: bool = False


@dataclass(slots=True)
class DirectEngine:
    """One engine behind Triton.

    Attributes:
        address: ``host:port`` of Triton's gRPC endpoint.
        version: TensorRT-LLM version for which the model repository was rendered.
        instances: number of instances of the model.
    """

    address: str
    version: str
    instances: int = 1

    def generate(self, prompt: Sequence[int], max_tokens: int, **fields: Any) -> Generated:
        """Generate one greedy answer; `fields` are fields of `EngineRequest`.

        Raises:
            TrussError: the engine failed.
            TimeoutError: no token arrived in time.
        """
        return self.generate_all([prompt], max_tokens, **fields)[0]

    def generate_all(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, **fields: Any
    ) -> list[Generated]:
        """Generate an answer to each prompt, all at once."""
        requests = [self._request(prompt, max_tokens, fields) for prompt in prompts]

        async def run() -> list[Generated]:
            client = TritonClient(self.address, tensorrt_llm_version=self.version)
            try:
                return await asyncio.gather(*(_read(client, request) for request in requests))
            finally:
                await client.close()

        return block_on(run)

    def stop(self, prompt: Sequence[int], max_tokens: int, within_s: float) -> Stopped:
        """Stop a running request with the tensor `stop`, or by cancelling its call.

        Args:
            prompt: token ids.
            max_tokens: enough for the request to keep running meanwhile.
            within_s: time limit of each of the two, in seconds.
        """
        request = self._request(prompt, max_tokens, {})
        return block_on(lambda: self._stop(request, within_s))

    def _request(
        self, prompt: Sequence[int], max_tokens: int, fields: dict[str, Any]
    ) -> EngineRequest:
        values = {"request_id": random_number(), "sampling": GREEDY, **fields}
        return EngineRequest(input_ids=prompt, max_tokens=max_tokens, **values)

    async def _stop(self, request: EngineRequest, within_s: float) -> Stopped:
        known = EngineInputs.of(self.version)
        message = encode_request(request, model_name=MODEL_NAME, known=known)
        connection = await GrpcConnection.connect(self.address, STREAM_INFER)
        try:
            answer = ResponseStream(request_id=request.request_id)
            exchange = connection.exchange(message, answer)
            tokens = len((await answer.next(deadline=_deadline())).token_ids)
            if answer.over:
                return Stopped(tokens, was_over=True)
            started = time.perf_counter()
            pause_s = within_s if self.instances == 1 else REPEAT_S
            while time.perf_counter() < started + within_s:
                orders = order_stop(connection, request.request_id, self.instances)
                if await answer.wait_for_end(pause_s):
                    return Stopped(tokens + answer.unread, by_stop_s=time.perf_counter() - started)
            for _, order in orders:
                await order.wait_for_end(within_s)
            await asyncio.sleep(_COUNT_S)
            ended_before = await _ended_requests(connection)
            started = time.perf_counter()
            connection.cancel(exchange, answer)
            while time.perf_counter() < started + within_s:
                if await _ended_requests(connection) > ended_before:
                    return Stopped(tokens, by_cancel_s=time.perf_counter() - started)
                await asyncio.sleep(_TICK_S)
            return Stopped(tokens)
        finally:
            connection.close()


async def _ended_requests(connection: GrpcConnection) -> int:
    """Return the requests that Triton's statistics count as finished."""
    request = service_pb2.ModelStatisticsRequest(name=MODEL_NAME)
    response = service_pb2.ModelStatisticsResponse()
    await asyncio.wait_for(call(connection, "ModelStatistics", request, response), _LIMIT_S)
    return sum(
        model.inference_stats.success.count + model.inference_stats.fail.count
        for model in response.model_stats
    )


async def _read(client: TritonClient, request: EngineRequest) -> Generated:
    started = time.perf_counter()
    first_s = 0.0
    ids: list[int] = []
    async with client.answer(request) as answer:
        while True:
            chunk = await answer.next(deadline=_deadline())
            if chunk.token_ids and not ids:
                first_s = time.perf_counter() - started
            ids += chunk.token_ids
            if chunk.final:
                return Generated(ids, first_s)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _LIMIT_S
