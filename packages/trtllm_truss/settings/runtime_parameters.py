"""Parameters of Triton's ``tensorrt_llm`` model, as data: the keys of `runtime`.

Source: ``triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`` in
NVIDIA/TensorRT-LLM (1.0 to 1.2), ``all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`` in
triton-inference-server/tensorrtllm_backend (up to 0.19), and what the C++ backend does with each
(``inflight_batcher_llm/src/model_instance_state.cc``). Rows without ``since`` are as old as 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_truss.releases.versions import Release


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of the model's ``parameters``; on the wire every value is a string.

    Attributes:
        name: the key.
        kind: type as which the backend parses the string; ``ints`` are comma-separated.
        default: value in our ``config.pbtxt``. Blank leaves the choice to the backend; None omits
            the key, because the backend would act on a blank value or does not know the key.
        choices: the only accepted words, if the backend has such a list.
        minimum: the smallest number; None means 0 for integers. A fraction lies strictly between 0
            and 1 if it is None, else from it to 1 inclusive.
        since: first release that has it.
        until: first release that no longer has it.
        instead: replacement in later releases, as a sentence.
    """

    name: str
    kind: Literal["bool", "int", "ints", "float", "text", "path"]
    default: str | None = ""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    since: Release = (0, 7)
    until: Release | None = None
    instead: str = ""


# Without V1, the batching that waits for a whole batch: it cannot stream.
_BATCHING = ("inflight_fused_batching", "inflight_batching")
_SCHEDULING = ("max_utilization", "guaranteed_no_evict")
_DECODING = (
    *("top_k", "top_p", "top_k_top_p", "beam_search"),
    *("medusa", "redrafter", "lookahead", "eagle"),
)
_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"

PARAMETERS: tuple[Parameter, ...] = (
    Parameter("max_beam_width", "int", minimum=1),
    Parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "text", "no", ("no", "yes")),
    Parameter("gpt_model_type", "text", "inflight_fused_batching", _BATCHING),
    Parameter("gpt_model_path", "path"),
    Parameter("encoder_model_path", "path", since=(0, 11)),
    Parameter("max_tokens_in_paged_kv_cache", "int", minimum=1),
    Parameter("max_attention_window_size", "ints", minimum=1),
    Parameter("sink_token_length", "int", since=(0, 10)),
    Parameter("batch_scheduler_policy", "text", "", _SCHEDULING),
    Parameter("kv_cache_free_gpu_mem_fraction", "float"),
    Parameter("cross_kv_cache_fraction", "float", since=(0, 14)),
    Parameter("kv_cache_host_memory_bytes", "int", since=(0, 10)),
    Parameter("kv_cache_onboard_blocks", "bool", since=(0, 10)),
    Parameter("enable_trt_overlap", "bool"),
    Parameter("exclude_input_in_output", "bool", "true"),
    Parameter("cancellation_check_period_ms", "int", "100", minimum=1, since=(0, 10)),
    Parameter("stats_check_period_ms", "int", minimum=1, since=(0, 10)),
    Parameter("iter_stats_max_iterations", "int", since=(0, 10)),
    Parameter("request_stats_max_iterations", "int", since=(0, 10)),
    Parameter("enable_kv_cache_reuse", "bool"),
    Parameter("normalize_log_probs", "bool", since=(0, 8)),
    Parameter("enable_chunked_context", "bool", since=(0, 8)),
    Parameter("gpu_device_ids", "ints", since=(0, 8)),
    Parameter("participant_ids", "ints", since=(0, 13)),
    Parameter("num_nodes", "int", minimum=1, since=(0, 19)),
    Parameter("lora_cache_optimal_adapter_size", "int", minimum=1, since=(0, 9)),
    Parameter("lora_cache_max_adapter_size", "int", minimum=1, since=(0, 9)),
    Parameter("lora_cache_gpu_memory_fraction", "float", since=(0, 9)),
    Parameter("lora_cache_host_memory_bytes", "int", minimum=1, since=(0, 9)),
    # The backend reads a blank folder instead of skipping it.
    Parameter("lora_prefetch_dir", "path", None, since=(0, 19)),
    Parameter("decoding_mode", "text", "", _DECODING, since=(0, 9)),
    Parameter("executor_worker_path", "path", _WORKER, since=(0, 10)),
    Parameter("lookahead_window_size", "int", minimum=1, since=(0, 19)),
    Parameter("lookahead_ngram_size", "int", minimum=1, since=(0, 19)),
    Parameter("lookahead_verification_set_size", "int", minimum=1, since=(0, 19)),
    Parameter("medusa_choices", "text", since=(0, 9)),
    Parameter("eagle_choices", "text", since=(0, 16)),
    Parameter("gpu_weights_percent", "float", minimum=0, since=(0, 10)),
    Parameter("enable_context_fmha_fp32_acc", "bool", since=(0, 12)),
    Parameter("multi_block_mode", "bool", since=(0, 12)),
    Parameter("cuda_graph_mode", "bool", since=(0, 15)),
    Parameter("cuda_graph_cache_size", "int", since=(0, 15)),
    Parameter("speculative_decoding_fast_logits", "bool", since=(0, 15)),
    # These three keys must exist, blank or not.
    Parameter("tokenizer_dir", "path", since=(0, 19)),
    Parameter("guided_decoding_backend", "text", "", ("xgrammar",), since=(0, 19)),
    Parameter("xgrammar_tokenizer_info_path", "path", since=(0, 19)),
    # Read by the backend (not yet in v0.12.0), but not in NVIDIA's config.pbtxt.
    Parameter("recv_poll_period_ms", "int", None, since=(0, 13)),
    # Keys of older eras.
    Parameter(
        *("max_num_sequences", "int", None),
        minimum=1,
        until=(0, 8),
        instead="Set max_batch_size.",
    ),
    Parameter(
        *("max_kv_cache_length", "int", None),
        minimum=1,
        until=(0, 8),
        instead="Set max_attention_window_size.",
    ),
    Parameter(
        *("worker_path", "path", None),
        since=(0, 9),
        until=(0, 10),
        instead="It is called executor_worker_path and needs no setting.",
    ),
    Parameter(
        *("use_custom_all_reduce", "bool", None),
        until=(0, 12),
        instead="Remove it: the runtime chooses by itself.",
    ),
)
