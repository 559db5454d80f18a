"""`check` accepts for a release exactly what the release's own classes accept.

The classes are the fake library's, which follow NVIDIA's sources and nothing of this project. They
receive the arguments as the backend converts them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import complete, llama
from tests.fakes.tensorrt_llm import SITE

from trtllm_backends.llm_api.library import Library
from trtllm_truss.engines.checkpoint.llm_args import doubtful_arguments, parse_llm_args
from trtllm_truss.engines.checkpoint.samplers import SPECULATION
from trtllm_truss.engines.checkpoint.variants import SPARSE_ATTENTION
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import release

RELEASES = ("1.0.0", "1.1.0", "1.2.1", "1.3.0rc20", "1.3.0rc30")

LENGTH = {"max_draft_len": 3}
DRAFT = {**LENGTH, "speculative_model_dir": "/weights/draft"}
CONNECTOR = {
    "connector_module": "cache",
    "connector_scheduler_class": "Scheduler",
    "connector_worker_class": "Worker",
}


def drafts(kind: str, **fields: object) -> dict[str, Any]:
    return {SPECULATION: {"decoding_type": kind, **fields}}


def cache(**fields: object) -> dict[str, Any]:
    return {"kv_cache_config": fields}


def graphs(**fields: object) -> dict[str, Any]:
    return {"cuda_graph_config": fields}


def sparse(algorithm: str, **fields: object) -> dict[str, Any]:
    return {SPARSE_ATTENTION: {"algorithm": algorithm, **fields}}


PARALLELISM: list[dict[str, Any]] = [
    {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    {"moe_expert_parallel_size": 4, "moe_tensor_parallel_size": 2, "moe_cluster_parallel_size": 1},
    {"enable_attention_dp": True, "enable_lm_head_tp_in_adp": True},
    {"enable_attention_dp": True, "attention_dp_config": {"enable_balance": True}},
    {"attention_dp_config": {"enable_balance": True, "timeout_iters": -1}},
    {"attention_dp_config": None},
    {"attention_dp_config": {"balance": True}},
    {"pp_partition": [16, 16]},
    {"gpus_per_node": 8},
    *({"allreduce_strategy": name} for name in ("AUTO", "MNNVL", "NCCL_SYMMETRIC", "RING")),
]
LIMITS: list[dict[str, Any]] = [
    {"max_batch_size": 8, "max_num_tokens": 4096, "max_seq_len": 8192, "max_input_len": 4000},
    {"max_beam_width": 4, "stream_interval": 2},
    {"stream_interval": 0},
    {"enable_chunked_prefill": True},
    {"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}},
    {"scheduler_config": {"capacity_scheduler_policy": "max_utilization"}},
    {"scheduler_config": {"context_chunking_policy": "EQUAL_PROGRESS"}},
    {"scheduler_config": {"waiting_queue_policy": "fcfs"}},
    {"scheduler_config": None},
    {"batch_wait_timeout_ms": 2.5, "batch_wait_timeout_iters": 3},
    {"batch_wait_max_tokens_ratio": 1.5},
]
CACHES: list[dict[str, Any]] = [
    *(cache(dtype=dtype) for dtype in ("auto", "fp8", "nvfp4")),
    cache(enable_block_reuse=False, enable_partial_reuse=False, copy_on_partial_reuse=True),
    cache(free_gpu_memory_fraction=0.8, max_tokens=65536),
    cache(free_gpu_memory_fraction=1.5),
    cache(max_attention_window=[4096, 32768]),
    cache(max_attention_window=[]),
    cache(max_attention_window=[0]),
    cache(tokens_per_block=64),
    cache(max_gpu_total_bytes=10**9),
    cache(host_cache_size=10**9, secondary_offload_min_priority=35),
    cache(onboard_blocks=False),
    cache(cross_kv_cache_fraction=0.5, use_uvm=False),
    cache(event_buffer_max_size=1024),
    cache(attention_dp_events_gather_period_ms=5),
    cache(mamba_ssm_cache_dtype="float16"),
    cache(mamba_ssm_cache_dtype="fp8"),
    cache(iteration_stats_interval=1, disk_cache_size=10**9, disk_cache_path="/cache"),
    {"kv_cache_config": None},
    {"kv_connector_config": CONNECTOR},
    {"kv_connector_config": {"connector_module": "cache"}},
    *(sparse("rocket", window_size=32, topr=0.5, page_size=4), sparse("rocket", index_topk=64)),
    *(sparse("dsa", index_topk=64, index_head_dim=128), sparse("dsa", window=8)),
    sparse("skip_softmax", threshold_scale_factor={"prefill": 1.0, "decode": 0.5}),
    {"fail_fast_on_attention_window_too_large": True},
]
KERNELS: list[dict[str, Any]] = [
    graphs(batch_sizes=[1, 2, 4, 8], enable_padding=True),
    graphs(max_batch_size=64, enable_padding=False),
    graphs(batch_sizes=[1, 2, 4], max_batch_size=4, enable_padding=True),
    graphs(batch_sizes=[1, 3, 300], max_batch_size=300),
    graphs(batch_sizes=[1, 2, 4, 8], max_batch_size=16),
    graphs(batch_sizes=[0]),
    graphs(padding_enabled=True),
    {"cuda_graph_config": None},
    {"torch_compile_config": {"enable_inductor": True, "max_num_streams": 2}},
    {"torch_compile_config": {"capture_num_tokens": [64, 128], "enable_userbuffers": False}},
    {"torch_compile_config": {"max_num_streams": 0}},
    {"torch_compile_config": None},
    {"enable_autotuner": False, "disable_overlap_scheduler": True},
    {"attn_backend": "FLASHINFER", "enable_min_latency": True},
    *({"moe_config": {"backend": name}} for name in ("CUTLASS", "TRITON", "AUTO")),
    {"moe_config": {"disable_finalize_fusion": True}},
    {"moe_config": {"use_low_precision_moe_combine": True, "max_num_tokens": 4096}},
    {"moe_config": {"load_balancer": __file__}},
    {"moe_config": {"load_balancer": {"num_slots": 288, "layer_updates_per_iter": 2}}},
    {"moe_config": {"enable_overlap": True}},
    {"moe_config": None},
    {"nvfp4_gemm_config": {"allowed_backends": ["cutlass", "cublaslt"]}},
    {"nvfp4_gemm_config": {"allowed_backends": ["cutlass", "triton"]}},
    {"nvfp4_gemm_config": {"allowed_backends": []}},
    {"nvfp4_gemm_config": None},
    {"force_dynamic_quantization": True, "enable_layerwise_nvtx_marker": True},
    {"load_format": "dummy", "checkpoint_format": "HF", "dtype": "bfloat16"},
    {"model_kwargs": {"rope_scaling": None}},
    {"custom_tokenizer": "deepseek_v32"},
    {"enable_sleep": True},
]
SAMPLING: list[dict[str, Any]] = [
    *({"sampler_type": name} for name in ("auto", "TorchSampler", "TRTLLMSampler", "greedy")),
    *({"enable_trtllm_sampler": True}, {"enable_mixed_sampler": True}),
    {"sampler_force_async_worker": True, "disable_flashinfer_sampling": True},
    *({"guided_decoding_backend": name} for name in ("xgrammar", "llguidance", "outlines")),
    {"enable_lora": True, "lora_config": {"max_lora_rank": 16, "max_loras": 4}},
    {"lora_config": {"lora_target_modules": ["attn_q", "mlp_gate"], "lora_ckpt_source": "nemo"}},
    {"lora_config": {"lora_ckpt_source": "peft"}},
    {"lora_config": None},
    {"peft_cache_config": {"device_cache_percent": 0.1, "host_cache_size": 10**9}},
    {"peft_cache_config": {"num_copy_streams": 2, "max_adapter_size": 64}},
    {"peft_cache_config": {"size": 8}},
    {"enable_iter_perf_stats": True, "iter_stats_max_iterations": 100},
    *({"return_perf_metrics": True}, {"perf_metrics_max_requests": 10}, {"max_stats_len": 100}),
    {"otlp_traces_endpoint": "http://collector:4317"},
    {"garbage_collection_gen0_threshold": 20000},
]
DRAFTS: list[dict[str, Any]] = [
    *(drafts("MTP"), drafts("MTP", num_nextn_predict_layers=2), drafts("MTP", max_draft_len=2)),
    drafts("MTP", use_relaxed_acceptance_for_thinking=True, relaxed_topk=5, relaxed_delta=0.5),
    drafts("MTP", begin_thinking_phase_token=7, END_THINKING_PHASE_TOKEN=8),
    *(drafts("MTP", mtp_eagle_one_model=True), drafts("MTP", use_mtp_vanilla=True)),
    *(drafts("MTP", num_nextn_predict_layers=0), drafts("MTP", eagle3_one_model=True)),
    *(drafts("Eagle"), drafts("Eagle", max_draft_len=3), drafts("Eagle", **DRAFT)),
    drafts("Eagle3", max_draft_len=3, speculative_model="/weights/draft"),
    drafts("Eagle", max_draft_len=0, speculative_model="/weights/draft"),
    drafts("Eagle", **DRAFT, eagle3_one_model=False, eagle3_layers_to_capture=[1, 15, 28]),
    drafts("Eagle", **DRAFT, eagle3_model_arch="mistral_large3"),
    drafts("Eagle", **DRAFT, eagle3_model_arch="qwen3"),
    drafts("Eagle", **DRAFT, eagle_choices=[[0], [0, 0], [1]]),
    drafts("Eagle", **DRAFT, eagle_choices="[[0], [0, 0]]"),
    drafts("Eagle", **DRAFT, eagle_choices=[[0], [1, 0]]),
    drafts("Eagle", **DRAFT, use_dynamic_tree=True, dynamic_tree_max_topK=4),
    drafts("Eagle", **DRAFT, use_dynamic_tree=True),
    drafts("Eagle", **DRAFT, use_dynamic_tree=True, eagle_choices=[[0]], dynamic_tree_max_topK=2),
    drafts("Eagle", **DRAFT, sa_config={"threshold": 4}),
    *(drafts("NGram"), drafts("NGram", **LENGTH), drafts("NGram", max_matching_ngram_size=2)),
    drafts("NGram", **LENGTH, max_matching_ngram_size=2, is_public_pool=True, is_keep_all=True),
    drafts("NGram", **LENGTH, max_matching_ngram_size=0),
    drafts("NGram", **LENGTH, prompt_lookup_max=2),
    *(drafts("DraftTarget", **DRAFT), drafts("Draft_Target", **DRAFT)),
    *(drafts("DraftTarget", **LENGTH), drafts("DraftTarget", speculative_model="/weights/draft")),
    drafts("DraftTarget", max_draft_len=3, pytorch_weights_path="/weights/draft"),
    *(drafts("AUTO"), drafts("Auto"), drafts("Medusa", **LENGTH), drafts("Lookahead")),
    *(drafts("PARD", **DRAFT), drafts("PARD", **DRAFT, mask_token_id=1), drafts("PARD")),
    *(drafts("SA", **LENGTH), drafts("SA", **LENGTH, max_matching_ngram_size=0)),
    *(drafts("SA", **LENGTH, global_pool_size=9), drafts("DFlash", **DRAFT, target_layer_ids=[1])),
    drafts("NGram", **LENGTH, max_concurrency=8),
    drafts("NGram", **LENGTH, draft_len_schedule={1: 3, 8: 2, 32: 0}),
    drafts("NGram", **LENGTH, draft_len_schedule={4: 3, 8: 2}),
    drafts("NGram", **LENGTH, draft_len_schedule={1: 2, 8: 1}),
    drafts("NGram", **LENGTH, draft_len_schedule={1: 3, 8: 5}),
    drafts("NGram", **LENGTH, acceptance_window=100, acceptance_length_threshold=1.5),
    drafts("NGram", **LENGTH, acceptance_window=-1),
    drafts("Eagle", **DRAFT, allow_advanced_sampling=False, max_total_draft_tokens=3),
    drafts("Eagle", **DRAFT, load_format="dummy"),
    drafts("Eagle", **DRAFT, use_rejection_sampling=True),
]
CONFIGURATIONS = [*PARALLELISM, *LIMITS, *CACHES, *KERNELS, *SAMPLING, *DRAFTS]


@pytest.fixture(scope="module")
def fake() -> ModuleType:
    file = SITE / "tensorrt_llm/fake/argument_classes.py"
    spec = importlib.util.spec_from_file_location("argument_classes", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def libraries(fake: ModuleType) -> dict[str, Library]:
    return {version: library_of(fake, version) for version in RELEASES}


def library_of(fake: ModuleType, version: str) -> Library:
    numbers = (*release(version), *((int(version.rpartition("rc")[2]),) if "rc" in version else ()))
    made = fake.classes(numbers)
    from_dict = {
        SPECULATION: lambda given: fake.read_drafts(made, given),
        SPARSE_ATTENTION: lambda given: fake.read_sparse_attention(made, given),
    }
    return Library(
        version=version,
        llm=made["TorchLlmArgs"],
        sampling_params=None,
        guided_decoding_params=None,
        lora_request=None,
        request_error=RuntimeError,
        llm_arguments=frozenset(made["TorchLlmArgs"].model_fields),
        from_dict=from_dict if version < "1.3" else {},
        draft_fields={
            name: frozenset(found.model_fields)
            for name, found in made.items()
            if name.endswith("DecodingConfig")
        },
    )


def refusal(library: Library, arguments: Mapping[str, Any]) -> str:
    """Return why the classes refuse arguments; empty if they do not."""
    try:
        if unknown := arguments.keys() - library.llm_arguments:
            return f"unknown: {unknown}"
        library.build("/model", "/tokenizer", arguments)
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(each, id=f"{number}-{'-'.join(each)}")
        for number, each in enumerate(CONFIGURATIONS)
    ],
)
def test_check_and_the_release_agree(
    configuration: dict[str, Any], version: str, libraries: dict[str, Library]
) -> None:
    problem = ""
    try:
        passed = parse_llm_args(configuration, version)
    except SettingsError as error:
        problem, passed = str(error), configuration
    of_release = refusal(libraries[version], passed)

    codes = {diagnostic.code for diagnostic in doubtful_arguments(configuration, version)}
    if "llm_argument_unknown" in codes:  # of 1.3: it passes with a warning
        assert "Extra inputs are not permitted" in of_release
        return
    assert bool(problem) == bool(of_release), problem or of_release
    if problem:
        return
    try:
        engine = complete(llama(), version=version, runtime={"llm_args": configuration})
    except SettingsError:  # it contradicts other settings
        return
    assert not refusal(libraries[version], engine.llm_args)
