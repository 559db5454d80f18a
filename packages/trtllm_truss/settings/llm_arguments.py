"""Arguments of TensorRT-LLM's ``LLM`` class, as data: the keys of `runtime.llm_args`.

Source: ``tensorrt_llm/llmapi/llm_args.py`` and ``tests/unittest/api_stability/references*`` in
NVIDIA/TensorRT-LLM, read at 1.0.0rc4, at pre-releases of 1.2.0, as published for 1.2.1
(nvidia.github.io/TensorRT-LLM, ``1.2.1/_modules``) and late in 1.3.0's; docs
(``docs/source/features``) of 1.3 and 1.4. Rows without ``since`` are as old as 1.0. The table is
complete up to 1.2; later releases have further arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_truss.releases.versions import Release

COMPLETE_BEFORE: Release = (1, 3)
"""The first release with arguments that the table may lack."""

DECODING_TYPES = (
    *("MTP", "Eagle3", "Eagle", "NGram", "DraftTarget", "Auto"),
    *("PARD", "SA", "DFlash"),  # from 1.3
)
"""Speculative decoding with the PyTorch backend; Medusa and Lookahead need a prebuilt engine."""

Kind = Literal["bool", "int", "number", "text", "ints", "mapping", "any"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, or one field of an argument that is an object.

    Attributes:
        name: its name.
        kind: type of its value.
        minimum: the smallest number.
        maximum: the largest number.
        choices: the accepted words; empty for any.
        fields: the fields of an object; empty if they are not checked.
        since: first release that has it.
        until: first release that no longer has it.
        refused: the reason why it cannot be set, as a sentence; empty if it can.
    """

    name: str
    kind: Kind
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    fields: tuple[Argument, ...] = ()
    since: Release = (1, 0)
    until: Release | None = None
    refused: str = ""


def _count(name: str, since: Release = (1, 0), until: Release | None = None) -> Argument:
    return Argument(name, "int", minimum=1, since=since, until=until)


def _size(name: str, since: Release = (1, 0)) -> Argument:
    return Argument(name, "int", minimum=0, since=since)


def _share(name: str, since: Release = (1, 0)) -> Argument:
    return Argument(name, "number", minimum=0, maximum=1, since=since)


def _flag(name: str, since: Release = (1, 0), until: Release | None = None) -> Argument:
    return Argument(name, "bool", since=since, until=until)


def _object(name: str, since: Release = (1, 0)) -> Argument:
    return Argument(name, "mapping", since=since)


def _owned(name: str, refused: str) -> Argument:
    return Argument(name, "any", refused=refused)


_FOLDERS = "It is the folder of the repository in model_metadata."
_TOKENS = "Text stays in this server; the engine receives and returns token ids."
_ONE_PROCESS = "The engine must run in a process of its own, which can be watched and ended."
_ENGINES = "It belongs to prebuilt engines and does not exist for a checkpoint. Remove it."

_KV_CACHE = (
    _share("free_gpu_memory_fraction"),
    _count("max_tokens"),
    _size("max_gpu_total_bytes", (1, 2)),
    _flag("enable_block_reuse"),
    _flag("enable_partial_reuse"),
    _flag("copy_on_partial_reuse"),
    Argument("dtype", "text", choices=("auto", "fp8", "nvfp4")),
    _count("tokens_per_block"),
    _size("host_cache_size"),
    Argument("max_attention_window", "ints", minimum=1),
    Argument("sink_token_length", "any", refused="The PyTorch backend ignores it. Remove it."),
    _flag("onboard_blocks"),
    _share("cross_kv_cache_fraction"),
    _size("secondary_offload_min_priority"),
    _size("event_buffer_max_size"),
    _count("attention_dp_events_gather_period_ms", (1, 1)),
    _flag("use_uvm"),
    Argument("mamba_ssm_cache_dtype", "text", since=(1, 1)),
    Argument("use_kv_cache_manager_v2", "any", since=(1, 3)),
    _share("max_util_for_resume", (1, 3)),
)
_SCHEDULER = (
    Argument(
        "capacity_scheduler_policy",
        "text",
        choices=("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"),
    ),
    Argument(
        "context_chunking_policy", "text", choices=("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")
    ),
    _owned("dynamic_batch_config", "The PyTorch backend does not support it. Remove it."),
    Argument("waiting_queue_policy", "text", since=(1, 3)),
)
_CUDA_GRAPHS = (
    Argument("batch_sizes", "ints", minimum=1),
    _size("max_batch_size"),
    _flag("enable_padding"),
)
_ADAPTER_CACHE = (
    *(_size(name) for name in ("num_host_module_layer", "num_device_module_layer")),
    *(_count(name) for name in ("optimal_adapter_size", "max_adapter_size")),
    *(_count(name) for name in ("num_put_workers", "num_ensure_workers", "num_copy_streams")),
    *(_count(name) for name in ("max_pages_per_block_host", "max_pages_per_block_device")),
    _share("device_cache_percent"),
    _size("host_cache_size"),
    _owned("lora_prefetch_dir", "The LLM API does not support it. Remove it."),
)

LLM_ARGUMENTS: tuple[Argument, ...] = (
    # Set by this project alone.
    _owned("model", _FOLDERS),
    _owned("tokenizer", _FOLDERS),
    _owned("revision", "Set engine_revision."),
    _owned("tokenizer_revision", "Set tokenizer_revision in model_metadata."),
    _owned("trust_remote_code", "Set trust_remote_code in model_metadata."),
    _owned("backend", "Checkpoints are served by the PyTorch backend."),
    _owned("skip_tokenizer_init", _TOKENS),
    _owned("num_postprocess_workers", _TOKENS),
    _owned("postprocess_tokenizer_dir", _TOKENS),
    _owned("reasoning_parser", "Set serving.reasoning_parser."),
    _owned("gather_generation_logits", _ONE_PROCESS),
    _owned("orchestrator_type", _ONE_PROCESS),
    _owned("ray_worker_extension_cls", _ONE_PROCESS),
    _owned("ray_placement_config", _ONE_PROCESS),
    _owned("context_parallel_size", "GPUs = tensor_parallelism × pipeline_parallelism."),
    _owned("cp_config", "GPUs = tensor_parallelism × pipeline_parallelism."),
    _owned("env_overrides", "Set environment_variables in config.yaml."),
    _owned("telemetry_config", "Usage statistics are off."),
    _owned("generation_config", "Set model_metadata.generation."),
    _owned("mm_encoder_only", "The model must generate text."),
    _owned("checkpoint_loader", "It is a Python object."),
    _owned("batched_logits_processor", "It is a Python object."),
    _owned("cache_transceiver_config", "One engine does both phases of a request here."),
    # Engines only: TrtLlmArgs.
    *(
        _owned(name, _ENGINES)
        for name in (
            *("build_config", "batching_type", "normalize_log_probs", "decoding_config"),
            *("extended_runtime_perf_knob_config", "calib_config", "quant_config"),
            *("embedding_parallel_mode", "enable_build_cache", "fast_build", "workspace"),
            *("enable_tqdm", "auto_parallel", "auto_parallel_world_size", "gpu_weights_percent"),
            *("enable_prompt_adapter", "max_prompt_adapter_token"),
        )
    ),
    # Parallelism.
    _count("tensor_parallel_size"),
    _count("pipeline_parallel_size"),
    _count("moe_tensor_parallel_size"),
    _count("moe_expert_parallel_size"),
    _count("moe_cluster_parallel_size"),
    _flag("enable_attention_dp"),
    _object("attention_dp_config", (1, 1)),
    _flag("enable_lm_head_tp_in_adp", (1, 1)),
    Argument("pp_partition", "ints", minimum=1, since=(1, 2)),
    _count("gpus_per_node"),
    Argument("allreduce_strategy", "text"),
    # Limits.
    _count("max_batch_size"),
    _count("max_num_tokens"),
    Argument("max_seq_len", "int", minimum=2),
    _count("max_input_len"),
    _count("max_beam_width"),
    _flag("enable_chunked_prefill"),
    _count("stream_interval"),
    Argument("scheduler_config", "mapping", fields=_SCHEDULER),
    Argument("batch_wait_timeout_ms", "number", minimum=0, since=(1, 1)),
    _size("batch_wait_timeout_iters", (1, 1)),
    _share("batch_wait_max_tokens_ratio", (1, 1)),
    # KV cache.
    Argument("kv_cache_config", "mapping", fields=_KV_CACHE),
    _object("kv_connector_config", (1, 1)),
    _object("sparse_attention_config", (1, 2)),
    _flag("fail_fast_on_attention_window_too_large", (1, 0), (1, 3)),
    # Model and kernels.
    Argument("tokenizer_mode", "text", choices=("auto", "slow")),
    Argument("custom_tokenizer", "text", since=(1, 2)),
    Argument("dtype", "text"),
    _object("model_kwargs", (1, 2)),
    Argument("load_format", "any"),
    Argument("checkpoint_format", "text"),
    Argument("attn_backend", "text"),
    _object("moe_config"),
    _object("nvfp4_gemm_config", (1, 2)),
    Argument("cuda_graph_config", "mapping", fields=_CUDA_GRAPHS),
    _object("torch_compile_config"),
    _flag("disable_overlap_scheduler"),
    _flag("enable_autotuner"),
    _flag("enable_sleep", (1, 2)),
    _flag("enable_min_latency"),
    _flag("force_dynamic_quantization"),
    _flag("enable_layerwise_nvtx_marker"),
    _size("garbage_collection_gen0_threshold"),
    # Sampling, guides, drafts, adapters.
    Argument("sampler_type", "text", since=(1, 1)),
    _flag("sampler_force_async_worker", (1, 2)),
    _flag("disable_flashinfer_sampling", (1, 2)),
    _flag("enable_trtllm_sampler", (1, 0), (1, 1)),
    _flag("enable_mixed_sampler", (1, 0), (1, 1)),
    Argument("guided_decoding_backend", "text", choices=("xgrammar", "llguidance")),
    _object("speculative_config"),
    _flag("enable_lora"),
    _object("lora_config"),
    Argument("peft_cache_config", "mapping", fields=_ADAPTER_CACHE),
    # Statistics.
    _flag("enable_iter_perf_stats"),
    _flag("enable_iter_req_stats"),
    _flag("print_iter_log"),
    _flag("return_perf_metrics", (1, 1)),
    _size("perf_metrics_max_requests", (1, 1)),
    _size("iter_stats_max_iterations"),
    _size("request_stats_max_iterations"),
    _size("max_stats_len", (1, 2)),
    Argument("otlp_traces_endpoint", "text", since=(1, 2)),
)
