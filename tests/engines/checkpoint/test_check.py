"""Checkpoints against releases, settings and GPUs, before a byte of weights."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import GB, complete, listing, llama, settings_for
from tests.engines.checkpoint.model_configs import DEEPSEEK, LATENT, MODELS, config
from tests.support.inspection import inspect_config

from trtllm_truss.engines.capacity import kv_cache_capacity
from trtllm_truss.engines.checkpoint import checks
from trtllm_truss.engines.checkpoint.checks import loadable_since
from trtllm_truss.engines.diagnostics import Diagnostic, Severity
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.gpus import ACCELERATORS, Gpu
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import IMAGES, SYSTEM_PYTHON
from trtllm_truss.engines.kinds import check_compatibility, with_settings
from trtllm_truss.releases import FACTS, dotted, release
from trtllm_truss.serving.preparation import cache_capacity
from trtllm_truss.settings.runtime import RuntimeOptions

VERSIONS = ("1.0.0", "1.1.0", "1.2.1", "1.3.0")
IMAGE = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"
HOPPER, ADA, BLACKWELL, AMPERE = (9, 0), (8, 9), (10, 0), (8, 0)


def findings(engine: Engine, version: str | None = "1.2.1", **host: Any) -> list[Diagnostic]:
    split = {
        "tensor_parallelism": engine.tensor_parallelism,
        "pipeline_parallelism": engine.pipeline_parallelism,
    }
    return check_compatibility(
        settings_for(**split),
        engine,
        HostInfo(runtime_version=version, python=SYSTEM_PYTHON, **host),
    )


def errors(engine: Engine, version: str | None = "1.2.1", **host: Any) -> str:
    found = findings(engine, version, **host)
    return " ".join(each.message for each in found if each.severity is Severity.ERROR)


def gpu(capability: tuple[int, int]) -> Gpu:
    return Gpu("a GPU", 80 * GB, 80 * GB, capability, "590.44.01")


@pytest.mark.parametrize("name", MODELS)
def test_the_first_release_that_serves_a_checkpoint(name: str) -> None:
    content, first = MODELS[name]
    engine = complete(content)
    serving = [version for version in VERSIONS if not errors(engine, version)]
    assert serving == (list(VERSIONS[VERSIONS.index(first) :]) if first else [])


def test_facts_and_refusals_name_the_release_and_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = tuple(image for image in IMAGES if release(image.tensorrt_llm) < (1, 3))
    monkeypatch.setattr(checks, "IMAGES", known)

    def fact(name: str) -> str:
        checkpoint = complete(MODELS[name][0]).checkpoint
        assert checkpoint is not None
        return loadable_since(checkpoint)

    assert fact("Qwen/Qwen3-8B") == "Qwen3ForCausalLM: TensorRT-LLM 1.0 on (image 25.09)"
    assert fact("openai/gpt-oss-20b").endswith("1.1 on (image 25.12)")
    assert fact("MiniMaxAI/MiniMax-M2").endswith("1.2 on (image 26.03)")
    assert fact("deepseek-ai/DeepSeek-V4-Pro").endswith("1.3 on (no Triton image yet)")
    assert "AutoDeploy" in fact("ibm-granite/granite-3.3-8b-instruct")
    assert "has no such architecture" in fact("microsoft/phi-2")
    assert "generates no text" in fact("Qwen/Qwen2.5-Math-PRM-7B")
    refused = errors(complete(MODELS["Qwen/Qwen3-Next-80B-A3B-Instruct"][0]), "1.1.0")
    assert "from TensorRT-LLM 1.2 on (image 26.03), and this is 1.1.0; set base_image" in refused
    assert known[-1].name in refused
    refused = errors(complete(MODELS["deepseek-ai/DeepSeek-V4-Pro"][0]))
    assert "no Triton image contains it yet" in refused


def test_an_unknown_architecture_of_a_newer_release_is_only_reported() -> None:
    newer = f"{dotted(FACTS['knows_architectures'].until or ())}.0rc1"
    found = findings(complete(llama(architectures=["NewForCausalLM"])), newer)
    assert [(each.code, each.severity) for each in found] == [
        ("architecture_unknown", Severity.WARNING)
    ]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"quant_method": "awq"}, "by AutoAWQ (quant_method awq), which TensorRT-LLM takes for"),
        ({"quant_method": "gptq"}, "by AutoGPTQ"),
        ({"quant_method": "bitsandbytes"}, "by bitsandbytes"),
        ({"quant_method": "fp8"}, "FP8 without blocks of 128×128"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "FP8 without blocks"),
        ({"quant_method": "hqq"}, "by quant_method hqq"),
        ({"bits": 4}, "by quant_method unnamed"),
        ({"quant_method": "nvfp4"}, "read from TensorRT-LLM 1.3"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "hf_quant_config.json"),
    ],
)
def test_weights_that_would_be_taken_for_unquantized(method: Any, words: str) -> None:
    assert words in errors(complete(llama(quantization_config=method)))


def modelopt(algorithm: str, cache: str | None = None, **metadata: Any) -> Engine:
    described = {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": cache}}
    content = llama(quantization_config={"quant_method": "modelopt"})
    engine = inspect_config(content, listing(9 * GB), quantization=described)
    return with_settings(engine, settings_for(**metadata), "1.2.1")


@pytest.mark.parametrize(
    ("engine", "capability", "words"),
    [
        (modelopt("FP8", "FP8"), AMPERE, "computes in FP8, which needs compute capability 8.9"),
        (modelopt("FP8", "FP8"), ADA, ""),
        (modelopt("NVFP4"), HOPPER, "computes in FP4, which needs compute capability 10.0"),
        (modelopt("NVFP4"), BLACKWELL, ""),
        (complete(MODELS["Qwen/Qwen3-8B-FP8"][0]), ADA, "block-scaled FP8"),
        (complete(MODELS["Qwen/Qwen3-8B-FP8"][0]), HOPPER, ""),
        (complete(MODELS["openai/gpt-oss-20b"][0]), AMPERE, "MXFP4"),
        (complete(MODELS["openai/gpt-oss-20b"][0]), HOPPER, ""),
        (complete(llama()), (7, 5), "computes in BF16"),
        (complete(llama(torch_dtype="float16")), (7, 5), ""),
    ],
)
def test_gpu_generations(engine: Engine, capability: tuple[int, int], words: str) -> None:
    found = errors(engine, gpus=[gpu(capability)])
    assert words in found
    assert bool(found) == bool(words)
    assert "build" not in found


def test_an_architecture_with_kernels_for_one_generation() -> None:
    engine = complete(MODELS["deepseek-ai/DeepSeek-V4-Pro"][0])
    assert "DeepseekV4ForCausalLM needs compute capability 10.0" in errors(
        engine, "1.3.0", gpus=[gpu(HOPPER)]
    )
    assert not errors(engine, "1.3.0", gpus=[gpu(BLACKWELL)])


@pytest.mark.parametrize(
    ("content", "tensor", "words"),
    [
        (llama(), 8, ""),
        (llama(), 16, ""),  # each key/value head is on two GPUs
        (llama(), 3, "does not divide the checkpoint's 32 attention heads and 8 key/value heads"),
        (llama(num_attention_heads=40, num_key_value_heads=10), 8, "10 key/value heads; set it to"),
        (config("DeepseekV3ForCausalLM", *DEEPSEEK, **LATENT), 16, ""),
    ],
)
def test_tensor_parallelism_divides_the_heads(content: Any, tensor: int, words: str) -> None:
    found = errors(complete(content, tensor_parallelism=tensor))
    assert words in found
    assert bool(found) == bool(words)


def test_remedies_for_a_split_that_does_not_fit() -> None:
    assert "; set it to 1 or 2 or 4 or 8." in errors(complete(llama(), tensor_parallelism=3))
    assert not errors(
        complete(
            llama(num_attention_heads=30, num_key_value_heads=30),
            tensor_parallelism=4,
            runtime={"llm_args": {"enable_attention_dp": True}},
        )
    )
    assert "the checkpoint has 32 layers; lower it" in errors(
        complete(llama(), pipeline_parallelism=64)
    )


@pytest.mark.parametrize("stages", [[20, 12], [32], [16, 15], [8, 8, 16]])
def test_a_partition_has_all_layers_and_stages(stages: list[int]) -> None:
    runtime = {"llm_args": {"pp_partition": stages}}
    found = errors(complete(llama(), pipeline_parallelism=2, runtime=runtime))
    assert ("it must have pipeline_parallelism, 2, numbers whose sum is" in found) == (
        stages != [20, 12]
    )


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"moe_tensor_parallel_size": 2, "moe_expert_parallel_size": 4}, ""),
        ({"moe_expert_parallel_size": 8}, ""),
        ({"moe_expert_parallel_size": 3}, "sets moe_expert_parallel_size 3, and tensor"),
        ({"moe_tensor_parallel_size": 2, "moe_expert_parallel_size": 2}, "parallelism, 8;"),
        ({"moe_cluster_parallel_size": 3}, "sets moe_cluster_parallel_size 3, and tensor"),
        ({"moe_cluster_parallel_size": 2, "moe_expert_parallel_size": 4}, ""),
    ],
)
def test_experts_are_split_over_the_same_gpus(sizes: dict[str, int], words: str) -> None:
    runtime = {"llm_args": sizes}
    content = MODELS["mistralai/Mixtral-8x7B-Instruct-v0.1"][0]
    found = errors(complete(content, tensor_parallelism=8, runtime=runtime))
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({"image": IMAGE.format("25.09")}, ""),
        ({"image": IMAGE.format("26.07")}, ""),
        ({"image": IMAGE.format("24.12")}, "image has TensorRT-LLM 0.16.0, and checkpoints are"),
        ({"image": IMAGE.format("25.08")}, "from 1.0 on (image 25.09)"),
        (
            {"image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc25"},
            "which does not contain Triton",
        ),
        ({"image": "example.com/mine:1"}, ""),
        ({}, ""),
    ],
)
def test_images(host: Any, words: str) -> None:
    found = errors(complete(llama()), None, **host)
    assert words in found
    assert bool(found) == bool(words)


def test_an_old_driver_is_reported() -> None:
    old = Gpu("a GPU", 80 * GB, 80 * GB, HOPPER, "535.104.05")
    codes = [
        f.code for f in findings(complete(llama()), None, image=IMAGE.format("26.07"), gpus=[old])
    ]
    assert codes == ["driver_too_old"]


def test_gpus_are_counted_by_the_settings() -> None:
    engine = complete(llama(), tensor_parallelism=2, pipeline_parallelism=2)
    assert "but the engine is configured for 4" in errors(engine, accelerator="H100")
    assert "is configured for 4 GPU(s) and 1 are visible here" in errors(engine, gpus=[gpu(HOPPER)])
    assert not errors(engine, accelerator="H100:4")


def test_code_of_the_checkpoint_is_reported() -> None:
    content = llama(auto_map={"AutoConfig": "configuration_own.Config"}, model_type="own")
    found = findings(complete(content))
    assert [each.code for each in found] == ["checkpoint_has_code"]
    assert "does not know model_type 'own', set trust_remote_code" in found[0].message


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", {}, 2 * 32 * 8 * 128 * 2),
        ("meta-llama/Llama-3.1-8B-Instruct", {"tensor_parallelism": 4}, 2 * 32 * 2 * 128 * 2),
        ("meta-llama/Llama-3.1-8B-Instruct", {"tensor_parallelism": 16}, 2 * 32 * 1 * 128 * 2),
        ("meta-llama/Llama-3.1-8B-Instruct", {"pipeline_parallelism": 4}, 2 * 8 * 8 * 128 * 2),
        ("Qwen/Qwen3-8B", {}, 2 * 36 * 8 * 128 * 2),
        ("google/gemma-3-4b-it", {}, 2 * 34 * 4 * 256 * 2),
        ("deepseek-ai/DeepSeek-V3", {}, 61 * 576 * 2),
        ("deepseek-ai/DeepSeek-V3", {"tensor_parallelism": 8}, 61 * 576 * 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {}, 2 * 12 * 2 * 256 * 2),
        ("Qwen/Qwen3.5-397B-A17B", {}, 2 * 15 * 2 * 256 * 2),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", {}, 2 * 4 * 8 * 128 * 2),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {}, 2 * 2 * 8 * 128 * 2),
        ("openai/gpt-oss-20b", {}, 2 * 24 * 8 * 64 * 2),
    ],
)
def test_bytes_of_a_token(name: str, split: dict[str, int], expected: int) -> None:
    shape = complete(MODELS[name][0], **split).cache_shape
    assert shape is not None
    assert shape.bytes_per_token == expected


@pytest.mark.parametrize(
    ("engine", "share"),
    [
        (modelopt("FP8", "FP8"), 0.5),
        (modelopt("FP8"), 1),
        (complete(llama(), runtime={"llm_args": {"kv_cache_config": {"dtype": "fp8"}}}), 0.5),
        (modelopt("FP8", "FP8", runtime={"llm_args": {"kv_cache_config": {"dtype": "auto"}}}), 0.5),
    ],
)
def test_the_cache_has_its_own_number_format(engine: Engine, share: float) -> None:
    shape = engine.cache_shape
    assert shape is not None
    assert shape.bytes_per_token == 131_072 * share


@pytest.mark.parametrize(
    ("llm_args", "codes"),
    [
        ({"max_seq_len": 131072}, []),
        ({"max_seq_len": 131073}, ["max_seq_len_above_model"]),
        ({"max_seq_len": 200000, "model_kwargs": {"rope_scaling": {}}}, []),
        ({"max_beam_width": 4}, ["one_beam_width"]),
    ],
)
def test_limits(llm_args: dict[str, Any], codes: list[str]) -> None:
    engine = complete(llama(), version="1.3.0", runtime={"llm_args": llm_args})
    assert [each.code for each in findings(engine, "1.3.0")] == codes


def test_data_parallel_attention_splits_no_heads() -> None:
    runtime = {"llm_args": {"enable_attention_dp": True}}
    shape = complete(llama(), tensor_parallelism=8, runtime=runtime).cache_shape
    assert shape is not None
    assert shape.bytes_per_token == 131_072


def capacity(free_bytes: int, weights_bytes: int = 16 * GB, **runtime: Any):
    engine = complete(llama(), weights_bytes=weights_bytes, runtime=runtime)
    shape = engine.cache_shape
    assert shape is not None
    assert engine.llm_args is not None
    assert engine.largest_rank_bytes == weights_bytes
    knobs = engine.cache_knobs(RuntimeOptions())
    measured = kv_cache_capacity(shape, knobs, free_bytes - weights_bytes)
    assert measured is not None
    return measured


@pytest.mark.parametrize(("gpus", "inner"), [(1, 14336), (8, 1792)])
def test_activations_of_a_step(gpus: int, inner: int) -> None:
    runtime = {"llm_args": {"max_num_tokens": 4096}}
    engine = complete(llama(), tensor_parallelism=gpus, runtime=runtime)
    assert engine.step_bytes == 4096 * (2 * 4096 + 4 * inner) * 2


def test_the_parent_of_the_workers_takes_memory_too() -> None:
    engine, host = complete(llama()), HostInfo(accelerator="H100")
    estimated = cache_capacity(settings_for(), engine, host)
    assert estimated is not None
    total = ACCELERATORS["H100"].memory_bytes
    assert estimated.free_bytes == total - 16 * GB - engine.step_bytes - GB // 2


def test_a_release_that_corrupts_its_cache_is_reported() -> None:
    for version, codes in (("1.2.0", ["release_corrupts_kv_cache"]), ("1.2.1", [])):
        assert [each.code for each in findings(complete(llama()), version)] == codes


def test_capacity_on_an_h100() -> None:
    measured = capacity(80 * GB)
    assert measured.tokens == int(64 * GB * 0.9 / 131_072) // 32 * 32
    assert measured.summary == (
        "57.6 GB of KV cache per GPU → 439,424 tokens → 13 sequences of 32,768 tokens"
    )
    assert measured.diagnostics == ()


def test_the_fraction_applies_beside_a_limit_of_tokens() -> None:
    measured = capacity(80 * GB, max_tokens_in_paged_kv_cache=1_000_000)
    assert measured.tokens == capacity(80 * GB).tokens
    assert measured.diagnostics == ()
    limited = capacity(80 * GB, llm_args={"kv_cache_config": {"max_tokens": 300_000}})
    assert limited.tokens == 300_000 // 32 * 32
    bounded = capacity(80 * GB, llm_args={"kv_cache_config": {"max_gpu_total_bytes": 10 * GB}})
    assert bounded.tokens == 10 * GB // 131_072 // 32 * 32


def test_what_does_not_fit_is_refused() -> None:
    (small,) = capacity(20 * GB).diagnostics
    assert small.code == "kv_cache_too_small"
    assert "fewer than one sequence of 32,768" in small.message
    assert "set a shorter max_seq_len or kv_cache_config.dtype fp8" in small.message
    assert capacity(20 * GB, llm_args={"max_seq_len": 8192}).diagnostics == ()
    (none,) = capacity(16 * GB).diagnostics
    assert none.code == "weights_exceed_memory"
