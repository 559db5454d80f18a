"""Capabilities of a checkpoint, by its settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import listing, llama, settings_for
from tests.support.inspection import inspect_config
from tests.support.lora import SQL

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.kinds import with_settings
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.preprocessing import Capabilities, validate_capabilities
from trtllm_truss.request_fields import OPTIONS
from trtllm_truss.requests import GenerationRequest, Guide
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import RuntimeOptions


def engine_for(settings: Settings, version: str = "1.2.1") -> Engine:
    described = inspect_config(llama(), listing())
    return with_settings(described, settings, version, [SQL] * len(settings.lora_adapters))


def capabilities(version: str = "1.2.1", **metadata: Any) -> Capabilities:
    settings = settings_for(**metadata)
    return Capabilities.of(Deployment(settings, engine_for(settings, version)))


@pytest.mark.parametrize(("is_split", "times"), [(False, 1), (True, 4)])
def test_each_rank_of_data_parallel_attention_has_a_batch_and_a_cache(
    is_split: bool, times: int
) -> None:
    llm_args = {
        "enable_attention_dp": is_split,
        "max_batch_size": 16,
        "kv_cache_config": {"max_tokens": 1000},
    }
    settings = settings_for(tensor_parallelism=4, runtime={"llm_args": llm_args})
    engine = engine_for(settings)
    admission = Admission.of(Deployment(settings, engine))
    assert admission.kv_cache_tokens == 1000 * times
    assert admission.capacity - settings.serving.queue_limit == 16 * times
    one_request = Capabilities.of(Deployment(settings, engine)).kv_cache_tokens
    assert one_request == 1000


def test_defaults() -> None:
    assert capabilities() == Capabilities(one_beam_width=True, biased_tokens=128256)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.7.1", {"frequency_penalty", "lora_task_id"}),
        ("0.8.0", {"lora_task_id"}),
        ("0.9.0", set()),
        (None, set()),
    ],
)
def test_fields_without_an_input_in_the_release(version: str | None, names: set[str]) -> None:
    settings = settings_for()
    found = Capabilities.of(Deployment(settings, engine_for(settings), None, version))
    assert {row.name for row in found.unknown_fields} == names
    for row in found.unknown_fields:
        request = GenerationRequest(prompt="Hi", max_tokens=5)
        validate_capabilities(request, engine_for(settings), found)
        setattr(request if row in OPTIONS else request.sampling, row.attribute, 1)
        with pytest.raises(InvalidRequest, match=f"{row.name} is not an input of this"):
            validate_capabilities(request, engine_for(settings), replace(found, adapters=True))


def test_adapters_are_numbered_in_order() -> None:
    found = capabilities(lora_adapters={"sql": "org/sql", "chat": "org/chat"})
    assert found.adapters
    assert found.adapter_ids == {"sql": 1, "chat": 2}


@pytest.mark.parametrize(
    ("version", "llm_args", "limit"),
    [
        ("1.2.1", {}, 0),
        ("1.2.1", {"sampler_type": "TorchSampler"}, 20),
        ("1.3.0", {}, 20),
        ("1.0.0", {}, 0),
    ],
)
def test_alternatives_depend_on_the_sampler(
    version: str, llm_args: dict[str, Any], limit: int
) -> None:
    assert capabilities(version, runtime={"llm_args": llm_args}).top_log_probs == limit


@pytest.mark.parametrize(
    ("asked", "param"), [({"log_probs": 2}, "log_probs"), ({"log_probs": 0, "echo": True}, "echo")]
)
def test_beams_without_alternatives(asked: dict[str, Any], param: str) -> None:
    engine = engine_for(settings_for())
    found = Capabilities(
        max_beam_width=2, top_log_probs=20, prompt_log_probs=True, scores_beams=False
    )
    validate_capabilities(GenerationRequest(prompt="Hi", max_tokens=5, **asked), engine, found)
    beams = GenerationRequest(prompt="Hi", max_tokens=5, beam_width=2, **asked)
    with pytest.raises(InvalidRequest, match=f"{param} is not supported with beam_width above 1"):
        validate_capabilities(beams, engine, found)
    validate_capabilities(beams, engine, replace(found, scores_beams=True))


def test_guides_of_llm_args() -> None:
    found = capabilities(runtime={"llm_args": {"guided_decoding_backend": "llguidance"}})
    assert found.guides


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.18.2", "needs TensorRT-LLM 0.19; this is 0.18.2. Leave it out."),
        ("1.0.0", "is off. Leave it out, or set model_metadata.runtime.guided_"),
    ],
)
def test_the_refusal_of_guides_names_what_helps(version: str, said: str) -> None:
    found = Capabilities(lacks_guides=RuntimeOptions.lacks_guides(version))
    request = GenerationRequest(prompt="Hi", max_tokens=5, guide=Guide("regex", "a+"))
    with pytest.raises(InvalidRequest, match=re.escape(f"guided decoding {said}")):
        validate_capabilities(request, engine_for(settings_for()), found)
