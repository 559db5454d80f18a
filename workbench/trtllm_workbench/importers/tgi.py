"""Text Generation Inference: its launcher's arguments and variables, and SageMaker's names of them.

Source: `docs/source/reference/launcher.md` in huggingface/text-generation-inference, 1.0 to 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_workbench.importers.rules import (
    ConversionResult,
    Given,
    OptionRule,
    RuleTable,
    WordMap,
    apply_rules,
    flag,
    json_list,
    not_needed,
    share,
    switches,
    unsupported,
)
from trtllm_workbench.importers.trtllm_serve import ENVIRONMENT, LLM
from trtllm_workbench.importers.vllm import QUANTIZED, adapters

_BATCHING = "requests are batched in flight, by runtime.batch_scheduler_policy"
_LIMITS = "docs/lmi.md has the fields and their limits"


def _graphs(text: str) -> object:
    """Convert batch sizes; 0 turns graphs off."""
    sizes = json_list(text)
    return None if sizes == [0] else {"batch_sizes": sizes, "enable_padding": True}


def _ngrams(text: str) -> object:
    tokens = int(text)
    if tokens == 0:
        return None
    return {"decoding_type": "NGram", "max_draft_len": tokens, "max_matching_ngram_size": 2}


_MODEL = (
    OptionRule(name="model_id", target="engine_repository", aliases=("hf_model_id", "model")),
    OptionRule(name="revision", target="engine_revision", aliases=("hf_model_revision",)),
    *unsupported(
        "the tokenizer's own files decide: put them into a repository, and name it as "
        "tokenizer_repository",
        "tokenizer_config_path",
    ),
    OptionRule(name="dtype", target=f"{LLM}.dtype"),
    OptionRule(
        name="kv_cache_dtype",
        target=f"{LLM}.kv_cache_config.dtype",
        convert=WordMap(
            {"fp8_e4m3fn": "fp8", "auto": "auto"}, refused="TensorRT-LLM has fp8 of e4m3"
        ),
    ),
    *unsupported(QUANTIZED, "quantize", "hf_model_quantize"),
    OptionRule(
        name="trust_remote_code",
        target="trust_remote_code",
        convert=flag,
        aliases=("hf_model_trust_remote_code",),
    ),
    *unsupported("name a repository whose config.json says so", "rope_scaling", "rope_factor"),
    OptionRule(name="lora_adapters", target="lora_adapters", convert=adapters),
    OptionRule(
        name="speculate",
        target=f"{LLM}.speculative_config",
        convert=_ngrams,
        reason="n-grams; heads of Medusa need a prebuilt engine",
    ),
    *not_needed("only text generation is served", "hf_task", only=("text-generation",)),
)
_GPUS = (
    OptionRule(
        name="num_shard", target="tensor_parallelism", convert=int, aliases=("sm_num_gpus",)
    ),
    *switches(not_needed("tensor_parallelism shards the model", "sharded")),
    OptionRule(
        name="cuda_memory_fraction",
        target="runtime.kv_cache_free_gpu_mem_fraction",
        convert=share,
        reason="of what is free beside the weights, where TGI's share includes them",
    ),
    OptionRule(name="cuda_graphs", target=f"{LLM}.cuda_graph_config", convert=_graphs),
    *switches(
        not_needed(
            "TensorRT-LLM chooses its kernels",
            *("disable_custom_kernels", "flash_attention", "flash_decoding", "flash_infer"),
            *("use_flash_attention", "attention", "paged_attention", "enable_cuda_graphs"),
        )
    ),
    *not_needed("the LLM API starts its ranks", "master_addr", "master_port", "shard_uds_path"),
)
_LENGTHS = (
    OptionRule(
        name="max_input_tokens",
        target=f"{LLM}.max_input_len",
        convert=int,
        aliases=("max_input_length",),
    ),
    OptionRule(name="max_total_tokens", target=f"{LLM}.max_seq_len", convert=int),
    OptionRule(
        name="max_batch_prefill_tokens",
        target=f"{LLM}.max_num_tokens",
        convert=int,
        reason="of all requests in one step",
    ),
    OptionRule(
        name="max_batch_total_tokens", target="runtime.max_tokens_in_paged_kv_cache", convert=int
    ),
    OptionRule(name="max_batch_size", target="runtime.max_batch_size", convert=int),
    OptionRule(
        name="max_concurrent_requests",
        target="serving.queue_limit",
        convert=int,
        reason="the requests that wait",
    ),
    *not_needed(_BATCHING, "waiting_served_ratio", "max_waiting_tokens"),
    OptionRule(name="payload_limit", target="serving.max_body_bytes", convert=int),
    *not_needed(
        _LIMITS,
        *("max_best_of", "max_stop_sequences", "max_top_n_tokens", "max_client_batch_size"),
        "max_image_fetch_size",
    ),
    OptionRule(
        name="prefix_caching",
        target="runtime.enable_kv_cache_reuse",
        convert=flag,
        aliases=("use_prefix_caching",),
    ),
    OptionRule(name="prefill_chunking", target="runtime.enable_chunked_context", convert=flag),
)
_SERVER = (
    *not_needed(
        "Truss's server listens where the platform expects it; `serve --port` for a try",
        *("hostname", "port", "p", "prometheus_port"),
    ),
    *not_needed("the platform checks API keys", "api_key"),
    *unsupported("the platform is in front of the server", "cors_allow_origin"),
    *switches(unsupported("the platform is in front of the server", "ngrok")),
    *unsupported("the platform is in front of the server", "ngrok_authtoken", "ngrok_edge"),
    *not_needed(
        "runtime.enable_tracing_data exports spans: docs/metrics.md",
        *("otlp_endpoint", "otlp_service_name"),
    ),
    *not_needed("the container's cache is below HF_HOME", "weights_cache_override"),
    *not_needed("prompts are encoded on threads of the server", "validation_workers"),
    *switches(
        not_needed("log lines are the server's own", "json_output", "disable_usage_stats", "env")
    ),
    *not_needed("log lines are the server's own", "log_level", "rust_log", "log_format"),
    *not_needed("no statistics are sent", "usage_stats", "hf_hub_user_agent_origin"),
    *switches(
        not_needed("serving.guide_compile_limit_s bounds grammars", "disable_grammar_support")
    ),
    *not_needed("`messages` and `inputs` are served side by side", "messages_api_enabled"),
    *switches(unsupported("text is not watermarked", "watermark")),
    *unsupported("text is not watermarked", "watermark_gamma", "watermark_delta"),
    *not_needed("the container's image has what it needs", "huggingface_offline", "cuda_home"),
)
SECTIONS = {
    "Model": _MODEL,
    "GPUs": _GPUS,
    "Lengths and batches": _LENGTHS,
    "Server": _SERVER,
    "Environment": ENVIRONMENT,
}
TABLE = RuleTable("TGI", SECTIONS)


def convert(given: Sequence[Given], _version: str | None) -> ConversionResult:
    """Convert options of TGI."""
    return apply_rules(given, TABLE.rules, "checkpoint", title=TABLE.title)
