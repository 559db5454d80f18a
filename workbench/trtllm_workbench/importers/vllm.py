"""`vllm serve`: its command line, its YAML and its environment.

Source: `vllm/engine/arg_utils.py` and `vllm/entrypoints/openai/cli_args.py` in vllm-project/vllm,
0.6 to 0.20, and vllm-project/recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtllm_workbench.importers.rules import (
    ConversionResult,
    Given,
    OptionRule,
    Refused,
    RuleTable,
    WordMap,
    apply_rules,
    flag,
    graphs,
    inverted_flag,
    json_value,
    not_needed,
    share,
    switches,
    token_count,
    unsupported,
)
from trtllm_workbench.importers.trtllm_serve import (
    COMMON,
    ENVIRONMENT,
    EVENTS_NOT_NEEDED,
    LLM,
    drafts,
)

QUANTIZED = (
    "a checkpoint is served as its files are quantized; name a repository with FP8, NVFP4 or MXFP4 "
    "weights, such as nvidia/…-FP8"
)
_TEXT_ONLY = "only text is served"
_KERNELS = "TensorRT-LLM chooses its kernels; `runtime.llm_args` has its own choices"
_REPLICAS = (
    "replicas of the deployment take its place; runtime.llm_args.enable_attention_dp splits "
    "attention by requests"
)
_DISK = "weights are read by the engine itself"
_LOGS = "Truss's server logs a line per request, without texts"


def _drafts(text: str) -> object:
    """Convert vLLM's speculative decoding."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise ValueError("it must be an object")
    method, model = str(value.get("method", "")), value.get("model")
    tokens = value.get("num_speculative_tokens", 1)
    if method in ("ngram", "[ngram]") or model == "[ngram]":
        size = value.get("prompt_lookup_max", 2)
        return {
            "decoding_type": "NGram",
            "max_draft_len": tokens,
            "max_matching_ngram_size": size,
        }
    if method.endswith("mtp") and not (model or "").strip():
        return {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
    if method.startswith("eagle") or model:
        kind = "Eagle" if method.startswith("eagle") else "DraftTarget"
        draft = {"decoding_type": kind, "max_draft_len": tokens, "speculative_model_dir": model}
        return drafts(str(draft))
    raise Refused("TensorRT-LLM has no such method; runtime.llm_args.speculative_config has others")


def adapters(text: str) -> object:
    """Convert `name=repository` words, or JSON objects with `name` and `path`."""
    found = {}
    items = json_value(text) if text.startswith(("[", "{")) else text.replace(",", " ").split()
    for item in items if isinstance(items, list) else [items]:
        if isinstance(item, dict):
            name, path = str(item.get("name", "")), str(item.get("path", ""))
        else:
            name, equals, path = str(item).partition("=")
            path = path if equals else name
        if not name or not path:
            raise ValueError("each must be NAME=REPOSITORY")
        found[name] = path
    return found


_DTYPES = WordMap(
    {
        **dict.fromkeys(("half", "float16"), "float16"),
        **dict.fromkeys(("float", "float32"), "float32"),
        **{"bfloat16": "bfloat16", "auto": "auto"},
    }
)
_CACHE_TYPES = WordMap(
    {
        **dict.fromkeys(("fp8", "fp8_e4m3"), "fp8"),
        **{"auto": "auto", "nvfp4": "nvfp4"},
    },
    refused="TensorRT-LLM has auto, fp8 (e4m3) and nvfp4",
)

_MODEL = (
    *(
        replace(rule, aliases=(*rule.aliases, "tool_call_parser"))
        if rule.name == "tool_parser"
        else rule
        for rule in COMMON
    ),
    OptionRule(name="dtype", target=f"{LLM}.dtype", convert=_DTYPES),
    OptionRule(name="max_model_len", target=f"{LLM}.max_seq_len", convert=token_count),
    *unsupported(QUANTIZED, "quantization", "q"),
    *not_needed("one kind of tokenizer serves all", "tokenizer_mode", only=("auto", "hf")),
    *not_needed("the tokenizer's own files decide", "tokenizer_pool_size", "tokenizer_pool_type"),
    *switches(
        unsupported("text goes in and comes out; predict takes text only", "skip_tokenizer_init")
    ),
    *not_needed("only text generation is served", "task", "runner", only=("generate", "auto")),
    *unsupported("name a repository whose config.json says so", "hf_overrides", "rope_scaling"),
    *unsupported("name a repository whose config.json says so", "rope_theta", "hf_config_path"),
    *not_needed(
        "generation_config.json is read for its end tokens; `generation` has defaults of fields",
        *("generation_config", "override_generation_config"),
    ),
    *not_needed("a request sets `seed`", "seed"),
    *not_needed(_DISK, "load_format", "config_format", only=("auto", "safetensors", "hf")),
    *not_needed(_DISK, "download_dir", "model_loader_extra_config", "safetensors_load_strategy"),
    *not_needed("the LLM API loads what it knows", "model_impl", only=("auto", "vllm")),
    *unsupported("engine_revision is for code as well", "code_revision"),
    *not_needed("logprobs are limited by the protocol", "max_logprobs"),
    *switches(not_needed("the model's window is in its config.json", "disable_sliding_window")),
)
_MEMORY = (
    OptionRule(
        name="gpu_memory_utilization",
        target="runtime.kv_cache_free_gpu_mem_fraction",
        convert=share,
        reason="of what is free beside the weights, where vLLM's share includes them",
    ),
    OptionRule(name="kv_cache_dtype", target=f"{LLM}.kv_cache_config.dtype", convert=_CACHE_TYPES),
    OptionRule(name="enable_prefix_caching", target="runtime.enable_kv_cache_reuse", convert=flag),
    OptionRule(
        name="enable_chunked_prefill", target="runtime.enable_chunked_context", convert=flag
    ),
    OptionRule(name="max_num_seqs", target="runtime.max_batch_size", convert=int),
    OptionRule(name="max_num_batched_tokens", target=f"{LLM}.max_num_tokens", convert=token_count),
    *not_needed(
        "blocks fit TensorRT-LLM's kernels; runtime.llm_args.kv_cache_config.tokens_per_block",
        *("block_size", "mamba_block_size", "mamba_cache_mode"),
    ),
    *not_needed(
        "runtime.kv_cache_host_memory_bytes keeps blocks in host memory",
        *("swap_space", "kv_offloading_size", "kv_offloading_backend"),
    ),
    *unsupported("weights stay in GPU memory; take more GPUs", "cpu_offload_gb"),
    *not_needed("runtime.max_tokens_in_paged_kv_cache limits it", "num_gpu_blocks_override"),
    *not_needed("runtime.llm_args.kv_cache_config has mamba_ssm_cache_dtype", "mamba_*"),
    *unsupported("runtime.llm_args.kv_connector_config has TensorRT-LLM's", "kv_transfer_config"),
    *not_needed(EVENTS_NOT_NEEDED, "kv_events_config"),
    *switches(not_needed("scales are read in the checkpoint", "calculate_kv_scales")),
    *switches(not_needed("hybrid models keep their kinds of cache", "disable_hybrid_*")),
    *not_needed("hashes of blocks are TensorRT-LLM's", "prefix_caching_hash_algo"),
)
_PARALLEL = (
    OptionRule(
        name="enable_expert_parallel",
        target=f"{LLM}.moe_expert_parallel_size",
        convert=int,
        switch=True,
        reason="the experts of all GPUs",
        aliases=("ep",),
    ),
    *not_needed(
        _REPLICAS,
        *("data_parallel_size", "dp", "data_parallel_size_local", "api_server_count", "asc"),
        only=("1",),
    ),
    *unsupported(_REPLICAS, "data_parallel_*"),
    *unsupported("runtime.llm_args.moe_config.load_balancer has it", "enable_eplb", "eplb_config"),
    *unsupported(
        "GPUs = tensor_parallelism × pipeline_parallelism",
        *("decode_context_parallel_size", "dcp", "prefill_context_parallel_size"),
    ),
    *not_needed(
        "the LLM API starts its ranks; docs/several-hosts.md for several hosts",
        *("distributed_executor_backend", "nnodes", "node_rank", "master_addr", "master_port"),
        "max_parallel_loading_workers",
    ),
    *switches(not_needed("docs/several-hosts.md", "headless", "ray_workers_use_nsight")),
    *switches(not_needed(_KERNELS, "disable_custom_all_reduce")),
    *not_needed(_KERNELS, "all2all_backend", "expert_placement_strategy"),
)
_SPEED = (
    OptionRule(name="enforce_eager", target=f"{LLM}.cuda_graph_config", convert=graphs),
    OptionRule(
        name="async_scheduling", target=f"{LLM}.disable_overlap_scheduler", convert=inverted_flag
    ),
    OptionRule(name="stream_interval", target=f"{LLM}.stream_interval", convert=int),
    OptionRule(
        name="speculative_config",
        target=f"{LLM}.speculative_config",
        convert=_drafts,
        aliases=("sc",),
    ),
    *unsupported(
        "runtime.llm_args.speculative_config takes its place",
        *("speculative_model", "num_speculative_tokens", "ngram_prompt_lookup_max"),
        *("ngram_prompt_lookup_min", "speculative_*"),
    ),
    *not_needed(
        "graphs are captured for every batch up to runtime.max_batch_size",
        *("cuda_graph_sizes", "max_cudagraph_capture_size", "cudagraph_capture_sizes"),
        "max_seq_len_to_capture",
    ),
    *not_needed(
        _KERNELS,
        *("compilation_config", "cc", "O*", "attention_backend", "attention_config*"),
        *("moe_backend", "kernel_config*", "linear_backend", "use_tqdm_on_load", "ac"),
        *("optimization_level", "mm_encoder_attn_backend", "performance_mode"),
    ),
    *switches(
        not_needed(
            _KERNELS,
            *("enable_flashinfer_autotune", "disable_cascade_attn", "use_v2_block_manager"),
        )
    ),
    *not_needed(
        "runtime.batch_scheduler_policy and runtime.llm_args.scheduler_config set the scheduler",
        *("scheduling_policy", "num_scheduler_steps", "scheduler_delay_factor", "scheduler_cls"),
        *("max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold"),
        *("preemption_mode", "num_lookahead_slots", "additional_config"),
    ),
    *switches(unsupported("replicas are scaled by the platform", "enable_sleep_mode")),
)
_ADAPTERS = (
    OptionRule(name="lora_modules", target="lora_adapters", convert=adapters, several=True),
    *switches(not_needed("`lora_adapters` turns adapters on", "enable_lora")),
    *switches(not_needed("adapters are split as their layers are", "fully_sharded_loras")),
    *not_needed("their rank is read in the adapters", "max_lora_rank", "lora_dtype"),
    *not_needed(
        "runtime.llm_args.peft_cache_config bounds the adapters' memory",
        *("max_loras", "max_cpu_loras", "lora_extra_vocab_size", "default_mm_loras"),
    ),
    *switches(unsupported("adapters have weights alone", "enable_lora_bias")),
    *unsupported("prompt adapters are not served", "enable_prompt_adapter", "prompt_adapters"),
)
_SERVER = (
    *not_needed("its options are converted as well", "config"),
    *not_needed("the platform checks API keys", "api_key"),
    *switches(not_needed("requests with `tools` choose by themselves", "enable_auto_tool_choice")),
    *switches(
        not_needed("usage is always part of an answer", "enable_prompt_tokens_details"),
    ),
    *switches(not_needed("reasoning is found with its parser", "enable_reasoning")),
    *switches(
        not_needed("usage is sent when asked for", "enable_force_include_usage"),
    ),
    *unsupported("serving.tool_parser has the formats", "tool_parser_plugin"),
    *unsupported("serving.tool_parser has the formats", "tool_call_parser_plugin"),
    *unsupported("serving.reasoning_parser has the formats", "reasoning_parser_plugin"),
    *not_needed("serving.reasoning_limit_tokens bounds it", "reasoning_config"),
    *not_needed("serving.reasoning_parser is enough", "structured_outputs_config*"),
    OptionRule(
        name="guided_decoding_backend",
        target="runtime.guided_decoding_backend",
        convert=WordMap(
            {"xgrammar": "xgrammar", "auto": "xgrammar", "guidance": "llguidance"},
            refused="the backends are xgrammar and llguidance",
        ),
    ),
    *not_needed("a request sets `chat_template_kwargs`", "default_chat_template_kwargs"),
    *not_needed("contents become text", "chat_template_content_format"),
    *switches(unsupported("a request brings no template", "trust_request_chat_template")),
    *not_needed("answers have the role `assistant`", "response_role", only=("assistant",)),
    *unsupported("tools run at the client", "tool_server"),
    *not_needed(_LOGS, "max_log_len", "uvicorn_log_level", "log_config_file", "log_level"),
    *switches(
        not_needed(
            _LOGS,
            *("disable_log_requests", "disable_log_stats", "disable_uvicorn_access_log"),
            *("enable_log_requests", "enable_log_outputs", "disable_access_log*"),
        )
    ),
    *not_needed("the platform terminates TLS", "ssl_*"),
    *not_needed("the platform is in front of the server", "allowed_*", "middleware"),
    *switches(not_needed("the platform is in front of the server", "allow_credentials")),
    *switches(not_needed("docs/metrics.md", "enable_server_load_tracking")),
    *switches(not_needed("docs/metrics.md", "disable_frontend_multiprocessing")),
    *switches(not_needed("every error has its reason", "disable_fastapi_docs")),
    *not_needed(
        "runtime.enable_tracing_data exports spans: docs/metrics.md",
        *("otlp_traces_endpoint", "collect_detailed_traces"),
    ),
    *unsupported("Python of other servers cannot be added", "logits_processors"),
    *unsupported("Python of other servers cannot be added", "logits_processor_pattern"),
    *unsupported("Python of other servers cannot be added", "worker_cls", "worker_extension_cls"),
    *not_needed(
        _TEXT_ONLY,
        *("limit_mm_per_prompt", "mm_processor_kwargs", "mm_processor_cache_gb", "mm_*"),
        *("media_io_kwargs", "allowed_local_media_path", "interleave_mm_strings"),
        "video_pruning_rate",
    ),
    *switches(
        not_needed(
            _TEXT_ONLY,
            *("language_model_only", "disable_mm_preprocessor_cache", "skip_mm_profiling"),
            *("disable_chunked_mm_input", "enable_mm_embeds"),
        )
    ),
    *unsupported("only text generation is served", "pooler_config", "convert"),
    *not_needed("GPUs of NVIDIA alone", "device", only=("cuda", "auto")),
)
SECTIONS = {
    "Model": _MODEL,
    "Memory": _MEMORY,
    "Parallelism": _PARALLEL,
    "Speed": _SPEED,
    "Adapters": _ADAPTERS,
    "Server": _SERVER,
    "Environment": (
        *ENVIRONMENT,
        *not_needed("a switch inside vLLM", "vllm_*"),
    ),
}
TABLE = RuleTable("vLLM", SECTIONS)


def convert(given: Sequence[Given], _version: str | None) -> ConversionResult:
    """Convert options of `vllm serve`."""
    sizes = [option.value for option in given if option.name in ("tensor_parallel_size", "tp")]
    return apply_rules(
        [_with_size(option, sizes) for option in given],
        TABLE.rules,
        "checkpoint",
        title=TABLE.title,
    )


def _with_size(option: Given, sizes: Sequence[str]) -> Given:
    """Replace a switch for expert parallelism by the number of GPUs."""
    if option.name not in ("enable_expert_parallel", "ep"):
        return option
    on = option.value.lower() == "true"
    return replace(option, value=(sizes or ["1"])[-1] if on else "1", text=option.value)
