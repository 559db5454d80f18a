"""Validation of builds from `config.json` alone: every problem and its remedy."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builder.checkpoints import A100, CONFIGS, H100, checkpoint, settings

from trtllm_builder.commands import Target
from trtllm_builder.plan import plan_build
from trtllm_truss.engines.images import image_for
from trtllm_truss.engines.model_config import parse_checkpoint
from trtllm_truss.errors import ArtifactError, SettingsError


def refusal(
    block: dict[str, Any],
    family: str = "LLaMA",
    target: Target = H100,
    model: dict[str, Any] | None = None,
    **metadata: Any,
) -> str:
    try:
        wanted, build = settings(block, **metadata)
        plan_build(wanted, build, checkpoint(family, **(model or {})), target)
    except SettingsError as error:
        return error.message
    pytest.fail("it was not refused")


QUANTIZED = {"method": "smoothquant"}


@pytest.mark.parametrize(
    ("block", "where", "parts"),
    [
        ({}, {"tensor_parallelism": 3}, ["3", "attention heads (32)", "(14336)", "set it to 2"]),
        (
            {},
            {
                "tensor_parallelism": 6,
                "model": {"num_attention_heads": 48, "intermediate_size": 12288},
            },
            ["key/value heads (8)", "set it to 4"],
        ),
        ({}, {"pipeline_parallelism": 33}, ["33", "32 layers"]),
        ({}, {"family": "ChatGLM", "pipeline_parallelism": 2}, ["set pipeline_parallelism to 1"]),
        (
            {"quantization": {"method": "awq"}},
            {"family": "Falcon"},
            ["awq", "Falcon", "int8_weight_only", "LLaMA"],
        ),
        ({"quantization": QUANTIZED}, {"family": "Mixtral"}, ["smoothquant", "Mixtral", "fp8"]),
        (
            {"quantization": QUANTIZED, "kv_cache_dtype": "fp8"},
            {},
            ["smoothquant", "fp8", "set kv_cache_dtype to int8"],
        ),
        (
            {"quantization": {"method": "fp8"}, "kv_cache_dtype": "int8"},
            {},
            ["set kv_cache_dtype to fp8"],
        ),
        ({"kv_cache_dtype": "int8"}, {"family": "Falcon"}, ["kv_cache_dtype int8", "remove it"]),
        (
            {"quantization": {"method": "awq"}},
            {"tensor_parallelism": 8, "model": {"intermediate_size": 11008}},
            ["block_size 128", "1376"],
        ),
        (
            {"quantization": {"method": "fp8"}},
            {"target": A100},
            ["8.9", "A100", "choose another method"],
        ),
        (
            {"quantization": {"method": "awq", "format": "w4a8_awq"}},
            {"target": A100},
            ["set int4_awq"],
        ),
        ({"dtype": "bfloat16"}, {"target": Target("1.0.0", "T4", (7, 5))}, ["8.0", "set float16"]),
        ({}, {"target": Target("0.16.0", "V100", (7, 0))}, ["V100", "newer GPU"]),
        (
            {},
            {"tensor_parallelism": 4, "target": Target("1.0.0", "H100", (9, 0), None, 2)},
            ["4 GPUs", "2"],
        ),
        ({}, {"target": Target("0.8.0")}, ["0.8.0", f"24.04 to {image_for('1.2.1').image.tag}"]),
        ({}, {"target": Target("1.3.0")}, ["1.3.0", "removed"]),
        ({}, {"family": "InternLM2", "target": Target("0.11.0")}, ["InternLM2", "0.12"]),
        ({}, {"family": "Baichuan"}, ["baichuan_model_version is missing", "v1_13b"]),
        ({"gpt_model_version": "gpt2"}, {}, ["gpt_model_version", "not supported for LLaMA"]),
        ({"rotary_dim": 64}, {}, ["rotary_dim", "not supported for LLaMA"]),
        ({"rotary_base": 1e4}, {"family": "Mistral"}, ["rotary_base", "not supported for Mistral"]),
        ({"rotary_scaling": {"type": "linear"}}, {}, ["rotary_scaling.factor is missing"]),
        ({"rotary_scaling": {"factor": 2.0}}, {}, ["rotary_scaling.type is missing"]),
        ({"rotary_scaling": {"type": "linear", "factor": 1.0}}, {}, ["greater than 1"]),
        ({"use_fused_mlp": True}, {"family": "GPT-J"}, ["gated MLP"]),
        ({"multi_block_mode": True}, {}, ["0.12", "model_metadata.runtime.multi_block_mode"]),
        ({"context_fmha_fp32_acc": True}, {}, ["runtime.enable_context_fmha_fp32_acc"]),
        ({"use_custom_all_reduce": True}, {}, ["0.12", "remove it"]),
        (
            {"multi_block_mode": True},
            {"family": "Qwen", "target": Target("0.11.0")},
            ["not supported for Qwen"],
        ),
        ({"use_fp8_context_fmha": True}, {}, ["method fp8"]),
        ({"load_by_shard": True, "quantization": QUANTIZED}, {}, ["cannot calibrate"]),
        ({"load_by_shard": True}, {"family": "GPT"}, ["not supported for GPT"]),
        (
            {"use_paged_context_fmha": False},
            {"runtime": {"enable_chunked_context": True}},
            ["enable_chunked_context"],
        ),
        ({}, {"family": "ChatGLM", "trust_remote_code": False}, ["trust_remote_code"]),
        (
            {},
            {"model": {"quantization_config": {"quant_method": "gptq"}}},
            ["quantized already (gptq)"],
        ),
        ({}, {"model": {"architectures": ["MambaForCausalLM"]}}, ["MambaForCausalLM", "Qwen"]),
    ],
)
def test_refused(block: dict[str, Any], where: dict[str, Any], parts: list[str]) -> None:
    message = refusal(block, **where)
    for part in parts:
        assert part in message


CPU = {"backend": "openvino_genai"}


@pytest.mark.parametrize(
    ("block", "where", "parts"),
    [
        ({}, {"family": "Qwen"}, ["Qwen2ForCausalLM", "LlamaForCausalLM"]),
        ({}, {"model": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}}, ["'llama3'"]),
        ({}, {"model": {"head_dim": 64}}, ["heads"]),
        ({}, {"tensor_parallelism": 2}, ["set tensor_parallelism and pipeline_parallelism to 1"]),
        ({"max_batch_size": 4}, {}, ["build.max_batch_size is not supported on the CPU"]),
        ({"quantization": {"method": "fp8"}}, {}, ["fp8 needs a GPU", "int8_weight_only"]),
        (
            {"quantization": {"method": "int4_weight_only"}},
            {"model": {"hidden_size": 4112, "num_attention_heads": 16}},
            ["4112", "blocks of 32"],
        ),
        (
            {},
            {"model": {"quantization_config": {}, "intermediate_size": 8, "architectures": ["X"]}},
            ["X"],
        ),
    ],
)
def test_refused_for_the_cpu(
    block: dict[str, Any], where: dict[str, Any], parts: list[str]
) -> None:
    message = refusal({**CPU, **block}, **where)
    for part in parts:
        assert part in message


def test_all_problems_are_reported_at_once() -> None:
    message = refusal({"kv_cache_dtype": "fp8", "rotary_dim": 64}, target=A100)
    assert "rotary_dim" in message
    assert "8.9" in message


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ([], "JSON object"),
        ({"model_type": "llama"}, "architectures"),
        ({**CONFIGS["LLaMA"], "hidden_size": "big"}, 'hidden_size is "big"'),
        ({k: v for k, v in CONFIGS["LLaMA"].items() if k != "vocab_size"}, "vocab_size"),
    ],
)
def test_an_invalid_checkpoint_is_rejected(config: object, part: str) -> None:
    with pytest.raises(ArtifactError, match=part):
        parse_checkpoint(config)


def test_families_name_their_measures_differently() -> None:
    chatglm, starcoder, falcon = (checkpoint(name) for name in ("ChatGLM", "GPT", "Falcon"))
    assert (chatglm.layers, chatglm.kv_heads, chatglm.positions) == (28, 2, 8192)
    assert (starcoder.layers, starcoder.kv_heads, starcoder.inner_size) == (40, 1, 24576)
    assert (falcon.kv_heads, falcon.inner_size, falcon.dtype) == (8, 4 * 8192, "bfloat16")
    assert checkpoint("GPT-J").inner_size == 4 * 4096
