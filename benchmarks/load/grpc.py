"""A bare loop over `tritonclient.grpc.aio`, without text or HTTP."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient import grpc
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

from benchmarks.load.loops import closed_loop
from benchmarks.load.record import Record
from benchmarks.load.spec import LoadSpec

_MODEL = "tensorrt_llm"


async def run_grpc(spec: LoadSpec, record: Record) -> None:
    """Run a load over gRPC, with all streams on one connection."""
    inputs = _inputs(spec)
    numbers = itertools.count()
    async with aio.InferenceServerClient(f"127.0.0.1:{spec.port}") as client:

        async def stream(more: Callable[[], bool]) -> None:
            while more():
                await _ask(client, inputs, str(next(numbers)), record)

        await closed_loop(spec, record, stream)


async def _ask(client: Any, inputs: list[Any], request_id: str, record: Record) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": _MODEL, "inputs": inputs, "request_id": request_id}

    start_s = time.perf_counter()
    arrivals_s: list[float] = []
    tokens = 0
    try:
        async for result, error in client.stream_infer(requests()):
            if error is not None:
                raise error
            tokens += result.as_numpy("output_ids").shape[-1]
            record.last_byte_s = time.perf_counter()
            arrivals_s.append(record.last_byte_s)
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    except InferenceServerException:
        record.add_failure("error")
    else:
        record.add(start_s, arrivals_s, tokens)


def _inputs(spec: LoadSpec) -> list[Any]:
    prompt = np.array([spec.prompt_ids], np.int32)
    return [
        _tensor("input_ids", "INT32", prompt),
        _tensor("input_lengths", "INT32", np.array([[prompt.size]], np.int32)),
        _tensor("request_output_len", "INT32", np.array([[spec.tokens]], np.int32)),
        _tensor("streaming", "BOOL", np.array([[True]])),
    ]


def _tensor(name: str, datatype: str, array: NDArray[Any]) -> Any:
    tensor = grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor
