"""Rules of all options of LMI's TensorRT-LLM containers.

Sources: LMI's "TensorRT-LLM Engine User Guide" and "Configurations" for 0.25 to 0.36
(https://docs.djl.ai/master/docs/serving/serving/docs/lmi/), and, from 0.33 on, the arguments
that its handler passes to TensorRT-LLM's LLM API.
"""

from __future__ import annotations

from collections.abc import Callable

from trtllm_workbench.lmi_import.option import (
    OptionRule,
    Outcome,
    WordMap,
    comma_separated,
    default_object,
    flag,
    inverted_flag,
)

PYTORCH = "pytorch"
"""The value of `backend` with which LMI serves a checkpoint without a build."""

_PYTORCH_ONLY = "LMI reads it with `backend=pytorch` only"
_LLM = "runtime.llm_args"
_KV_CACHE = f"{_LLM}.kv_cache_config"
_NOT_BUILT_IN = "the build does not support it"
_BUILDER_DECIDES = "the build sets it"

_DTYPES = WordMap(
    {
        **dict.fromkeys(("fp16", "float16"), "float16"),
        **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
        **dict.fromkeys(("fp32", "float32"), "float32"),
        "auto": "auto",
    }
)
_CHATGLM = WordMap(
    {
        "chatglm_6b": "chatglm",
        **dict.fromkeys(("chatglm2_6b", "chatglm2_6b_32k"), "chatglm2"),
        **dict.fromkeys(("chatglm3_6b", "chatglm3_6b_base", "chatglm3_6b_32k"), "chatglm3"),
        "glm_10b": "glm",
        "unspecified": None,
        **{name: name for name in ("glm", "chatglm", "chatglm2", "chatglm3", "glm4")},
    }
)
_ALGORITHMS = WordMap(
    {
        "fp8": "fp8",
        "w8a16": "int8_weight_only",
        "w4a16": "int4_weight_only",
        "w4a16_awq": "awq",
        "w8a8_sq_per_channel": "smoothquant",
        "none": None,
    }
)
_METHODS = WordMap({"smoothquant": "smoothquant", "awq": "awq", "fp8": "fp8"})


def _build(
    name: str, convert: Callable[[str], object] = str, target: str = "", checkpoint: str = ""
) -> OptionRule:
    return OptionRule(
        name=name, target=f"build.{target or name}", convert=convert, checkpoint=checkpoint
    )


def _runtime(name: str, convert: Callable[[str], object] = str, target: str = "") -> OptionRule:
    return OptionRule(name=name, target=f"runtime.{target or name}", convert=convert)


def _either(name: str, convert: Callable[[str], object], target: str = "") -> OptionRule:
    """Map to the build, or for a prebuilt engine to the runtime, by the same name."""
    key = target or name
    return OptionRule(name=name, target=f"build.{key}", prebuilt=f"runtime.{key}", convert=convert)


def _not_needed(name: str, reason: str, *only: str) -> OptionRule:
    return OptionRule(name=name, outcome=Outcome.NOT_NEEDED, only=only, reason=reason)


def _of_checkpoints(
    name: str, target: str, convert: Callable[[str], object] = str, *only: str, reason: str = ""
) -> OptionRule:
    """Map for a checkpoint; an engine does not need it, or `only` these values."""
    return OptionRule(
        name=name,
        outcome=Outcome.NOT_NEEDED,
        checkpoint=target,
        convert=convert,
        only=only,
        reason=reason or _PYTORCH_ONLY,
    )


def _unsupported(reason: str, *names: str) -> tuple[OptionRule, ...]:
    return tuple(
        OptionRule(name=name, outcome=Outcome.UNSUPPORTED, reason=reason) for name in names
    )


def _quantization(
    name: str, target: str, convert: Callable[[str], object], *methods: str
) -> OptionRule:
    path = f"build.quantization.{target}"
    return OptionRule(name=name, target=path, convert=convert, methods=methods)


SERVER = (
    _not_needed("engine", "the engine's folder determines the backend"),
    _not_needed("mpi_mode", "several ranks always start under mpirun"),
    _not_needed("rolling_batch", "requests are always batched in flight", "auto", "trtllm"),
    _not_needed("batch_size", "requests are always batched in flight", "1"),
    _not_needed("enable_streaming", "a request sets `stream`"),
    _not_needed("async_mode", "requests always run concurrently"),
    OptionRule(
        name="model_id",
        target="build.checkpoint_repository",
        prebuilt="engine_repository",
        operator_says="ENGINE",
    ),
    OptionRule(
        name="revision",
        target="build.checkpoint_revision",
        prebuilt="engine_revision",
        operator_says="ENGINE@REVISION",
    ),
    _not_needed("hf_token", "set the secret `hf_access_token` if a repository needs it"),
    _not_needed("task", "only text generation is served", "text-generation"),
    OptionRule(
        name="trust_remote_code",
        target="trust_remote_code",
        convert=flag,
        operator_says="--trust-remote-code",
    ),
    OptionRule(name="tensor_parallel_degree", target="tensor_parallelism", convert=int),
    OptionRule(name="pipeline_parallel_degree", target="pipeline_parallelism", convert=int),
    OptionRule(name="pipeline_parallel_size", target="pipeline_parallelism", convert=int),
    _either("max_rolling_batch_size", int, "max_batch_size"),
    _not_needed("max_rolling_batch_prefill_tokens", "TensorRT-LLM's handler never read it"),
    OptionRule(name="job_queue_size", target="serving.queue_limit", convert=int),
    _not_needed("output_formatter", "a request sets `stream` or `output_formatter`", "json"),
    _not_needed("tgi_compat", "responses to huggingface_hub's client have TGI's shapes"),
    _not_needed(
        "entryPoint",
        "one entry point serves all",
        *("djl_python.tensorrt_llm", "djl_python.lmi_trtllm.trtllm_async_service"),
    ),
    _not_needed("parallel_loading", "ranks always load at once"),
    OptionRule(name="model_loading_timeout", target="serving.start_timeout_s", convert=float),
    OptionRule(name="predict_timeout", target="serving.request_timeout_s", convert=float),
    *_unsupported("only decoder models are served", "trtllm_python_backend"),
    _not_needed("backend", "`pytorch` serves the checkpoint itself", PYTORCH, "tensorrt"),
)

ENGINE = (
    _build("dtype", _DTYPES, checkpoint=f"{_LLM}.dtype"),
    _build("max_input_len", int, checkpoint=f"{_LLM}.max_input_len"),
    OptionRule(
        name="max_output_len",
        target="build.max_output_len",
        convert=int,
        reason="as before LMI 0.30; later it meant `max_seq_len`",
    ),
    _build("max_seq_len", int, checkpoint=f"{_LLM}.max_seq_len"),
    _build("max_num_tokens", int, checkpoint=f"{_LLM}.max_num_tokens"),
    _build("opt_num_tokens", int),
    _either("max_batch_size", int),
    _either("max_beam_width", int),
    _build("tokens_per_block", int, checkpoint=f"{_KV_CACHE}.tokens_per_block"),
    _build("use_custom_all_reduce", flag),
    _build("use_paged_context_fmha", flag),
    _build("use_fp8_context_fmha", flag),
    _build("context_fmha_fp32_acc", flag),
    _either("multi_block_mode", flag),
    _build("use_fused_mlp", flag),
    _build("gemm_plugin"),
    _build("logits_dtype", _DTYPES),
    _build("rotary_base", float),
    _build("rotary_dim", int),
    _build("rotary_scaling_type", str, "rotary_scaling.type"),
    _build("rotary_scaling_factor", float, "rotary_scaling.factor"),
    _build("baichuan_model_version"),
    _build("chatglm_model_version", _CHATGLM),
    _build("gpt_model_version"),
    _build("load_by_shard", flag),
    _build("num_engine_workers", int, "workers"),
    _not_needed("num_checkpoint_workers", "`build.workers` is for both steps"),
    _not_needed("trtllm_checkpoint_path", "the build caches its steps"),
    _not_needed("enable_build_cache", "finished builds are always cached"),
    *_unsupported("draft models are not supported", "max_draft_len", "speculative_decoding_mode"),
    *_unsupported(
        _NOT_BUILT_IN,
        *("max_prompt_embedding_table_size", "gather_context_logits", "gather_generation_logits"),
        *("weight_sparsity", "weight_streaming", "max_encoder_input_len", "build_config"),
        "context_parallel_size",
    ),
    *(
        OptionRule(
            name=name,
            outcome=Outcome.UNSUPPORTED,
            checkpoint=f"{_LLM}.{name}",
            convert=int,
            reason=_NOT_BUILT_IN,
        )
        for name in ("moe_tensor_parallel_size", "moe_expert_parallel_size")
    ),
    *(
        _not_needed(name, _BUILDER_DECIDES)
        for name in ("kv_cache_type", "profiling_verbosity", "input_timing_cache", "monitor_memory")
    ),
    _of_checkpoints("load_format", f"{_LLM}.load_format", str, "auto", reason=_BUILDER_DECIDES),
    _not_needed("auto_parallel", _BUILDER_DECIDES, "false"),
    _not_needed("embedding_parallel_mode", _BUILDER_DECIDES, "SHARDING_ALONG_VOCAB"),
)

QUANTIZATION = (
    _build("quantize", _METHODS, "quantization.method"),
    _build("quant_algo", _ALGORITHMS, "quantization.method"),
    _build(
        "kv_cache_quant_algo",
        WordMap({"int8": "int8", "fp8": "fp8"}),
        "kv_cache_dtype",
        checkpoint=f"{_KV_CACHE}.dtype",
    ),
    _quantization("smoothquant_alpha", "alpha", float, "smoothquant"),
    _quantization("smoothquant_val", "alpha", float, "smoothquant"),
    _quantization("smoothquant_per_token", "per_token", flag, "smoothquant"),
    _quantization("smoothquant_per_channel", "per_channel", flag, "smoothquant"),
    _not_needed("multi_query_mode", "determined by the checkpoint's number of key-value heads"),
    _quantization("awq_format", "format", str, "awq"),
    _quantization("q_format", "format", str, "awq"),
    _quantization("awq_calib_size", "calib_size", int, "awq"),
    _quantization("calib_size", "calib_size", int, "awq", "fp8"),
    _quantization("calib_batch_size", "calib_batch_size", int, "awq", "fp8"),
    _quantization("awq_block_size", "block_size", int, "awq"),
    _quantization("group_size", "block_size", int, "awq"),
    *_unsupported(
        _NOT_BUILT_IN,
        *("clamp_val", "use_meta_recipe", "has_zero_point", "pre_quant_scales", "exclude_modules"),
        *("device", "calib_dataset", "calib_batches", "calib_max_seq_length", "random_seed"),
        "tokenizer_max_seq_length",
    ),
)

RUNTIME = (
    _runtime("batch_scheduler_policy"),
    _runtime("kv_cache_free_gpu_mem_fraction", float),
    _runtime("free_gpu_memory_fraction", float, "kv_cache_free_gpu_mem_fraction"),
    _runtime("max_num_sequences", int, "max_batch_size"),
    _not_needed("enable_trt_overlap", "it has had no effect since TensorRT-LLM 0.10"),
    _runtime("enable_kv_cache_reuse", flag),
    _runtime("enable_block_reuse", flag, "enable_kv_cache_reuse"),
    _runtime("max_tokens", int, "max_tokens_in_paged_kv_cache"),
    _runtime("max_attention_window", comma_separated, "max_attention_window_size"),
    _runtime("sink_token_length", int),
    _runtime("host_cache_size", int, "kv_cache_host_memory_bytes"),
    _runtime("onboard_blocks", flag, "kv_cache_onboard_blocks"),
    _runtime("cross_kv_cache_fraction", float),
    _runtime("enable_chunked_prefill", flag, "enable_chunked_context"),
    _runtime("guided_decoding_backend"),
    _runtime("normalize_log_probs", flag),
    OptionRule(name="tokenizer", target="tokenizer_repository", operator_says="--tokenizer REPO"),
    OptionRule(
        name="tokenizer_revision",
        target="tokenizer_revision",
        operator_says="--tokenizer REPO@REVISION",
    ),
    _not_needed("tokenizer_mode", "all tokenizers are of one kind", "auto"),
    _not_needed("skip_tokenizer_init", "the engine never sees text"),
    _of_checkpoints(
        "enable_attention_dp",
        f"{_LLM}.enable_attention_dp",
        flag,
        "false",
        reason="an engine's attention is never data-parallel",
    ),
    *(
        OptionRule(
            name=name,
            outcome=Outcome.UNSUPPORTED,
            checkpoint=f"{_KV_CACHE}.{name}",
            convert=int,
            reason="the engine's defaults apply",
        )
        for name in ("secondary_offload_min_priority", "event_buffer_max_size")
    ),
    _of_checkpoints("enable_overlap_scheduler", f"{_LLM}.disable_overlap_scheduler", inverted_flag),
    _of_checkpoints("kv_cache_dtype", f"{_KV_CACHE}.dtype"),
    _of_checkpoints("attn_backend", f"{_LLM}.attn_backend"),
    _of_checkpoints("use_cuda_graph", f"{_LLM}.cuda_graph_config", default_object),
    _of_checkpoints("moe_backend", f"{_LLM}.moe_config.backend"),
)

SECTIONS = {
    "Server": SERVER,
    "Engine": ENGINE,
    "Quantization": QUANTIZATION,
    "Runtime": RUNTIME,
}
OPTIONS = {option.name: option for section in SECTIONS.values() for option in section}
