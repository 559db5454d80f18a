"""The backend in real Triton: requests and responses are passed unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.backends.token_model.backend_requests import END_ID, PROMPT
from tests.engines.checkpoint.llm_api.conftest import StartTriton

from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest


@pytest.fixture(scope="module")
def address(start_llm_triton: StartTriton, checkpoint: Path) -> str:
    return start_llm_triton(checkpoint).grpc_address


async def chunks(address: str, **fields: Any) -> list[EngineChunk]:
    client, got = TritonClient(address, tensorrt_llm_version=PINNED_VERSION), []
    given = {"input_ids": PROMPT, "max_tokens": 8, "end_id": END_ID, **fields}
    try:
        async with client.answer(EngineRequest("r", **given)) as answer:
            while not (got and got[-1].final):
                got.append(await answer.next())
    finally:
        await client.close()
    return got


def ids(got: list[EngineChunk]) -> list[int]:
    return [token for chunk in got for token in chunk.token_ids]


async def test_streams_and_whole_answers_are_equal(address: str) -> None:
    streamed = await chunks(address, return_log_probs=True)
    (whole,) = await chunks(address, streaming=False, return_log_probs=True)

    assert ids(streamed) == list(whole.token_ids)
    assert len(ids(streamed)) == 8
    assert streamed[-1].log_probs == whole.log_probs
    assert len(whole.log_probs) == 8
    assert whole.cum_log_prob == pytest.approx(sum(whole.log_probs), abs=1e-4)


async def test_an_unsupported_request_is_an_error_of_the_caller(address: str) -> None:
    with pytest.raises(InvalidRequest, match="lora_task_id 9 is unknown; known ids: none"):
        await chunks(address, lora_task_id=9)
