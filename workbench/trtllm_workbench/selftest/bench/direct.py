"""The engine alone: token ids to and from Triton's gRPC endpoint, without text and HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from trtllm_truss.releases.contract import INPUTS, MODEL_NAME
from trtllm_truss.releases.tables import rows_for
from trtllm_truss.request_fields import Sampling
from trtllm_truss.triton.client.client import STREAM_INFER, TritonClient
from trtllm_truss.triton.client.grpc_connection import GrpcConnection
from trtllm_truss.triton.client.response_stream import ResponseStream
from trtllm_truss.triton.client.tensors import (
    EngineRequest,
    encode_request,
    encode_stop,
    random_number,
)
from trtllm_truss.triton.protobuf import service_pb2

GREEDY = Sampling(top_k=1)
_LIMIT_S = 120.0
_STATISTICS = "/inference.GRPCInferenceService/ModelStatistics"
_TICK_S = 0.01
_COUNT_S = 0.1
"""For the end of the order to be counted."""
T = TypeVar("T")


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
        tokens: tokens that had arrived at the order to stop.
        by_stop_s: seconds from the tensor `stop` to the end; None if it did not end.
        by_cancel_s: seconds from the cancellation of the call to the end; None likewise.
        was_over: the request had ended before.
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
        version: the TensorRT-LLM version that the model repository was rendered for.
    """

    address: str
    version: str

    def generate(self, prompt: Sequence[int], max_tokens: int, **fields: Any) -> Generated:
        """Generate one greedy answer; `fields` are those of `EngineRequest`.

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

        return _run(run())

    def stop(self, prompt: Sequence[int], max_tokens: int, within_s: float) -> Stopped:
        """Stop a running request with the tensor `stop`, else by cancelling its call.

        Args:
            prompt: ids.
            max_tokens: so many that the request runs on meanwhile.
            within_s: seconds that each of the two may take.
        """
        return _run(self._stop(self._request(prompt, max_tokens, {}), within_s))

    def _request(
        self, prompt: Sequence[int], max_tokens: int, fields: dict[str, Any]
    ) -> EngineRequest:
        values = {"request_id": random_number(), "sampling": GREEDY, **fields}
        return EngineRequest(input_ids=prompt, max_tokens=max_tokens, **values)

    async def _stop(self, request: EngineRequest, within_s: float) -> Stopped:
        declared = frozenset(row.name for row in rows_for(INPUTS, self.version))
        message = encode_request(request, model_name=MODEL_NAME, declared=declared)
        connection = await GrpcConnection.connect(self.address, STREAM_INFER)
        try:
            answer = ResponseStream(request_id=request.request_id)
            call = connection.exchange(message, answer)
            tokens = len((await answer.next(deadline=_deadline())).token_ids)
            if answer.over:
                return Stopped(tokens, was_over=True)
            started = time.perf_counter()
            order = ResponseStream(request_id=request.request_id)
            connection.exchange(encode_stop(request.request_id, model_name=MODEL_NAME), order)
            if await answer.wait_for_end(within_s):
                return Stopped(tokens + answer.unread, by_stop_s=time.perf_counter() - started)
            await order.wait_for_end(within_s)
            await asyncio.sleep(_COUNT_S)
            ended_before = await _ended_requests(connection)
            started = time.perf_counter()
            connection.cancel(call, answer)
            while time.perf_counter() < started + within_s:
                if await _ended_requests(connection) > ended_before:
                    return Stopped(tokens, by_cancel_s=time.perf_counter() - started)
                await asyncio.sleep(_TICK_S)
            return Stopped(tokens)
        finally:
            connection.close()


class _Statistics:
    """Receives the response of one call."""

    def __init__(self) -> None:
        self.payload: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def message(self, payload: bytes) -> bool:
        if not self.payload.done():
            self.payload.set_result(payload)
        return False

    def ended(self, status: object, details: str) -> None:
        if not self.payload.done():
            self.payload.set_exception(ConnectionError(f"{status}: {details}"))


async def _ended_requests(connection: GrpcConnection) -> int:
    """Return the requests that Triton's statistics count as ended."""
    receiver = _Statistics()
    request = service_pb2.ModelStatisticsRequest(name=MODEL_NAME)
    connection.call(_STATISTICS, request.SerializeToString(), receiver)
    payload = await asyncio.wait_for(receiver.payload, _LIMIT_S)
    answer = service_pb2.ModelStatisticsResponse.FromString(payload)
    return sum(
        model.inference_stats.success.count + model.inference_stats.fail.count
        for model in answer.model_stats
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


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
