"""The keys of `runtime` for a checkpoint: their arguments of ``tensorrt_llm.LLM``, as data.

Source: both contracts, see `runtime_parameters` and `llm_arguments`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_truss.settings.runtime import ParameterValue


@dataclass(frozen=True, slots=True)
class RuntimeKey:
    """The fate of one key of `runtime`; exactly one attribute is set.

    Attributes:
        argument: path of the argument, with a dot before a field of an object.
        kept: what this project's backend does with it, as a parameter of its config.pbtxt.
        unused: the reason why it has no effect; it is reported.
        refused: the reason why it cannot be set, with the remedy.
        note: how the value is converted; empty if it passes unchanged.
        convert: converts the value.
    """

    argument: str = ""
    kept: str = ""
    unused: str = ""
    refused: str = ""
    note: str = ""
    convert: Callable[[ParameterValue], Any] = lambda value: value


def _to(argument: str) -> RuntimeKey:
    return RuntimeKey(argument)


_EXECUTOR = "it is a parameter of the C++ backend"
_KERNELS = "the PyTorch backend chooses its kernels itself"
_STATISTICS = "the engine's statistics are off"
_ENGINE_DRAFTS = (
    "needs a prebuilt engine; speculative decoding of a checkpoint is set by "
    "runtime.llm_args.speculative_config"
)
_NO_COUNTERPART = "has no counterpart for a checkpoint; remove it"

RUNTIME_KEYS: dict[str, RuntimeKey] = {
    "max_batch_size": _to("max_batch_size"),
    "max_beam_width": _to("max_beam_width"),
    "kv_cache_free_gpu_mem_fraction": _to("kv_cache_config.free_gpu_memory_fraction"),
    "max_tokens_in_paged_kv_cache": _to("kv_cache_config.max_tokens"),
    "enable_kv_cache_reuse": _to("kv_cache_config.enable_block_reuse"),
    "kv_cache_host_memory_bytes": _to("kv_cache_config.host_cache_size"),
    "kv_cache_onboard_blocks": _to("kv_cache_config.onboard_blocks"),
    "cross_kv_cache_fraction": _to("kv_cache_config.cross_kv_cache_fraction"),
    "max_attention_window_size": RuntimeKey(
        "kv_cache_config.max_attention_window",
        note="a list",
        convert=lambda value: list(value) if isinstance(value, tuple) else value,
    ),
    "batch_scheduler_policy": RuntimeKey(
        "scheduler_config.capacity_scheduler_policy",
        note="in upper case",
        convert=lambda value: str(value).upper(),
    ),
    "enable_chunked_context": _to("enable_chunked_prefill"),
    "enable_trt_overlap": RuntimeKey(
        "disable_overlap_scheduler", note="inverted", convert=lambda value: not value
    ),
    "cuda_graph_mode": RuntimeKey(
        "cuda_graph_config",
        note="`false` is `null`, which turns graphs off; `true` is the default",
        convert=lambda value: {} if value else None,
    ),
    "guided_decoding_backend": _to("guided_decoding_backend"),
    "lora_cache_optimal_adapter_size": _to("peft_cache_config.optimal_adapter_size"),
    "lora_cache_max_adapter_size": _to("peft_cache_config.max_adapter_size"),
    "lora_cache_gpu_memory_fraction": _to("peft_cache_config.device_cache_percent"),
    "lora_cache_host_memory_bytes": _to("peft_cache_config.host_cache_size"),
    "xgrammar_tokenizer_info_path": RuntimeKey(
        unused="the engine builds its grammars from the checkpoint's tokenizer"
    ),
    **dict.fromkeys(
        ("FORCE_CPU_ONLY_INPUT_TENSORS", "gpt_model_type", "executor_worker_path"),
        RuntimeKey(unused=_EXECUTOR),
    ),
    **dict.fromkeys(("stats_check_period_ms", "recv_poll_period_ms"), RuntimeKey(unused=_EXECUTOR)),
    "cancellation_check_period_ms": RuntimeKey(kept="looks for cancelled requests this often"),
    **dict.fromkeys(
        ("iter_stats_max_iterations", "request_stats_max_iterations"),
        RuntimeKey(unused=_STATISTICS),
    ),
    **dict.fromkeys(
        ("multi_block_mode", "enable_context_fmha_fp32_acc", "cuda_graph_cache_size"),
        RuntimeKey(unused=_KERNELS),
    ),
    **dict.fromkeys(
        ("exclude_input_in_output", "num_nodes", "speculative_decoding_fast_logits"),
        RuntimeKey(unused="it has one accepted value, which is the behaviour"),
    ),
    "normalize_log_probs": RuntimeKey(kept="divides log probabilities of beams by their length"),
    "instance_count": RuntimeKey(
        refused="starts several engines on one GPU, which the LLM API does not support; remove it"
    ),
    **dict.fromkeys(
        ("gpu_device_ids", "participant_ids"),
        RuntimeKey(
            refused="has no counterpart for a checkpoint; set CUDA_VISIBLE_DEVICES under "
            "environment_variables"
        ),
    ),
    **dict.fromkeys(
        (
            *("decoding_mode", "medusa_choices", "eagle_choices"),
            *("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
        ),
        RuntimeKey(refused=_ENGINE_DRAFTS),
    ),
    **dict.fromkeys(
        ("sink_token_length", "gpu_weights_percent", "encoder_model_path", "lora_prefetch_dir"),
        RuntimeKey(refused=_NO_COUNTERPART),
    ),
    "tokenizer_dir": RuntimeKey(
        refused="is the folder of tokenizer_repository; set that one instead"
    ),
}
"""Every key that a release with the LLM API's PyTorch backend knows."""

KEPT_KEYS = frozenset(name for name, key in RUNTIME_KEYS.items() if key.kept)
