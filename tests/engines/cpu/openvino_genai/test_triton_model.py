"""The CPU engine in real Triton: requests and responses are passed unchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openvino_genai
import pytest
from tests.backends.token_model.backend_requests import END_ID, PROMPT, request
from tests.support.paths import TEMPLATES
from tests.support.waiting import PATIENCE_S

from trtllm_backends.openvino_genai.engine import GenAiEngine
from trtllm_backends.openvino_genai.guide_compiler import find_model
from trtllm_truss.engines.engine import ModelConfig
from trtllm_truss.engines.images import PINNED_VERSION
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.machine.runtime import assemble_backends, find_installation
from trtllm_truss.releases import CACHED_TOKENS
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import Guide
from trtllm_truss.triton.client.client import TritonClient
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest
from trtllm_truss.triton.model_repository import render_repository
from trtllm_truss.triton.server.command import launcher, server_environment
from trtllm_truss.triton.server.process import ServerProcess


@pytest.fixture(scope="module")
def address(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = tmp_path_factory.mktemp("cpu")
    installation = find_installation()
    command = launcher(
        installation,
        repository=render_repository(
            TEMPLATES,
            run / "repository",
            ModelConfig(model_folder, {"max_beam_width": "2"}, inputs=(), outputs=(CACHED_TOKENS,)),
            backend="openvino_genai",
            max_batch_size=4,
            tensorrt_llm_version=PINNED_VERSION,
        ),
        backends=assemble_backends(installation, run / "backends", {}),
        world_size=1,
    )
    process = ServerProcess(command, server_environment(os.environ, installation))
    process.start()
    try:
        process.wait_until_ready(PATIENCE_S)
        assert process.launch is not None
        yield f"127.0.0.1:{process.launch.ports.grpc}"
    finally:
        process.stop(3)


async def chunks(
    address: str, input_ids: Sequence[int] = PROMPT, **fields: Any
) -> list[EngineChunk]:
    client, got = TritonClient(address, tensorrt_llm_version=PINNED_VERSION), []
    request = EngineRequest("r", input_ids, **{"max_tokens": 8, "end_id": END_ID, **fields})
    try:
        async with client.answer(request) as answer:
            while not (got and got[-1].final):
                got.append(await answer.next())
    finally:
        await client.close()
    return got


def ids(got: list[EngineChunk]) -> list[int]:
    return [token for chunk in got for token in chunk.token_ids]


@pytest.mark.parametrize("streaming", [True, False])
async def test_log_probabilities_are_those_of_genai(
    address: str, engine: GenAiEngine, streaming: bool
) -> None:
    outputs = ("output_ids", "sequence_length", "output_log_probs")
    prompt = [260, *PROMPT]  # unique, as another request's cached values may be rounded differently
    handle = engine.add(request(prompt, 8, return_log_probs=True, outputs=outputs))
    while handle.get_status() != openvino_genai.GenerationStatus.FINISHED:
        engine.step()
    (expected,) = handle.read_all()
    got = await chunks(address, prompt, end_id=None, return_log_probs=True, streaming=streaming)

    assert ids(got) == expected.generated_ids
    assert got[-1].log_probs == pytest.approx(expected.generated_log_probs, abs=1e-4)
    assert got[-1].cum_log_prob == pytest.approx(sum(expected.generated_log_probs), abs=1e-3)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_guide_is_followed(address: str, model_folder: Path, streaming: bool) -> None:
    decode = openvino_genai.Tokenizer(find_model(model_folder).path).decode
    guide = Guide("json_schema", '{"enum": ["größtes 🤖", "naïve"]}')
    sampling = Sampling(temperature=1.5, top_k=50, seed=3)
    got = await chunks(address, guide=guide, streaming=streaming, sampling=sampling, max_tokens=30)

    assert json.loads(decode(ids(got))) in ("größtes 🤖", "naïve")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guide": Guide("regex", "(é")}, "guided_decoding_guide cannot be followed: Regex pars"),
        ({"guide": Guide("json_schema", "{")}, "guided_decoding_guide cannot be followed: it is"),
        (
            {"guide": Guide("json_schema", "{}"), "end_id": None},
            "guided_decoding_guide_type needs end_id",
        ),
        ({"lora_task_id": 2**63}, "lora_task_id is not supported by the CPU engine"),
    ],
)
async def test_unsupported_requests_are_errors_of_the_caller(
    address: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await chunks(address, **fields)
    assert refusal.value.message.startswith(message)


async def test_the_best_of_two_beams(address: str) -> None:
    """Cut the log probabilities to the length of the best beam, which is shorter."""
    beams = {"beam_width": 2, "streaming": False, "return_log_probs": True}
    (longest,) = await chunks(address, **beams)
    (best,) = await chunks(address, end_id=longest.token_ids[4], **beams)

    assert len(best.token_ids) == len(best.log_probs) < len(longest.token_ids) == 8
    assert min(best.log_probs) < max(best.log_probs) < 0
