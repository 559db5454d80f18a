"""Estimated sizes agree with the models' parameters and the guide's 75 GB."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builder.checkpoints import A100, checkpoint, settings

from trtllm_builder.commands import Target, find_family
from trtllm_builder.jobs import estimate_build, estimate_cpu_build


def estimated(family: str, block: dict[str, Any], target: Target = A100, **metadata: Any) -> Any:
    wanted, build = settings(block, **metadata)
    model = checkpoint(family)
    found = find_family(model.architecture)
    assert found is not None
    return estimate_build(wanted, build, model, found, target)


@pytest.mark.parametrize(
    ("family", "billions"),
    [
        *(("LLaMA", 8.03), ("Mistral", 7.24), ("Mixtral", 46.7), ("Falcon", 41.8)),
        *(("Baichuan", 13.3), ("ChatGLM", 6.24), ("GPT-J", 6.05), ("Qwen", 7.6), ("GPT", 15.5)),
    ],
)
def test_engines_are_as_large_as_their_parameters(family: str, billions: float) -> None:
    size = estimated(family, {"dtype": "float16"}).engine_bytes
    assert size / 2e9 == pytest.approx(billions, rel=0.05)


def test_the_guides_llama_takes_75_gb() -> None:
    estimate = estimated("LLaMA", {"max_input_len": 2048, "max_output_len": 1024})
    assert estimate.capacity is not None
    used = estimate.rank_bytes + estimate.capacity.cache_bytes
    assert used / 1e9 == pytest.approx(74, abs=1.5)
    assert estimate.capacity.sequence_tokens == 3072


def test_quantization_shrinks_weights_and_cache() -> None:
    plain = estimated("LLaMA", {})
    small = estimated(
        "LLaMA",
        {"quantization": {"method": "awq"}, "kv_cache_dtype": "fp8"},
        tensor_parallelism=2,
    )
    assert small.rank_bytes < plain.rank_bytes / 5
    assert small.capacity.bytes_per_token * 4 == plain.capacity.bytes_per_token
    assert small.disk_bytes == small.checkpoint_bytes + 2 * small.engine_bytes


def test_without_a_gpu_the_cache_is_not_estimated() -> None:
    estimate = estimated("LLaMA", {}, Target())
    assert estimate.capacity is None
    assert len(estimate.sentences) == 3


def test_engines_of_the_cpu() -> None:
    _, build = settings(
        {"backend": "openvino_genai", "quantization": {"method": "int8_weight_only"}}
    )
    model = checkpoint()
    family = find_family(model.architecture)
    assert family is not None
    assert estimate_cpu_build(build, model, family).engine_bytes / 8.03e9 == pytest.approx(
        8.5 / 8, rel=0.02
    )
