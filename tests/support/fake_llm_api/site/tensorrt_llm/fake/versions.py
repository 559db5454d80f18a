"""The version that the fake behaves as, and its keyword arguments."""

import math
import os
import re

VERSION = os.environ.get("TLLM_FAKE_VERSION", "1.2.1")
IS_1_3 = VERSION.startswith("1.3")
RELEASE = (*map(int, re.findall(r"\d+", VERSION)), *(() if "rc" in VERSION else (math.inf,)))
"""Its numbers, of a pre-release with its own as the fourth."""

_LLM = """
model tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code revision tokenizer_revision
dtype model_kwargs tensor_parallel_size pipeline_parallel_size context_parallel_size
moe_expert_parallel_size moe_tensor_parallel_size moe_cluster_parallel_size enable_attention_dp
gpus_per_node max_batch_size max_num_tokens max_seq_len max_input_len max_beam_width
enable_chunked_prefill scheduler_config cuda_graph_config disable_overlap_scheduler
torch_compile_config enable_autotuner attn_backend moe_config stream_interval
guided_decoding_backend speculative_config lora_config enable_lora peft_cache_config
enable_iter_perf_stats enable_iter_req_stats return_perf_metrics perf_metrics_max_requests
gather_generation_logits num_postprocess_workers garbage_collection_gen0_threshold
batch_wait_timeout_ms batch_wait_timeout_iters batch_wait_max_tokens_ratio load_format
checkpoint_format orchestrator_type kv_cache_config backend
"""
_LLM_1_2 = "fail_fast_on_attention_window_too_large iter_stats_max_iterations"
_LLM_1_3 = "custom_tokenizer max_stats_len env_overrides telemetry_config generation_config"
_SAMPLERS = "sampler_type" if RELEASE >= (1, 1) else "enable_trtllm_sampler enable_mixed_sampler"
_TRACES = "otlp_traces_endpoint" if RELEASE >= (1, 2) else ""
LLM_ARGUMENTS = frozenset(
    f"{_LLM} {_LLM_1_3 if IS_1_3 else _LLM_1_2} {_SAMPLERS} {_TRACES}".split()
)
ENGINE_ONLY = frozenset(("batching_type", "normalize_log_probs", "enable_tqdm", "fast_build"))

_KV_CACHE = """
free_gpu_memory_fraction max_tokens enable_block_reuse enable_partial_reuse copy_on_partial_reuse
dtype tokens_per_block host_cache_size max_attention_window sink_token_length
event_buffer_max_size cross_kv_cache_fraction
"""
KV_CACHE_ARGUMENTS = frozenset(
    (_KV_CACHE + ("max_gpu_total_bytes use_kv_cache_manager_v2" if IS_1_3 else "")).split()
)

_SAMPLING = """
end_id pad_id max_tokens bad bad_token_ids stop stop_token_ids include_stop_str_in_output
embedding_bias logits_processor ignore_eos n best_of use_beam_search top_k top_p top_p_min
top_p_reset_ids top_p_decay seed temperature min_tokens beam_search_diversity_rate
repetition_penalty presence_penalty frequency_penalty length_penalty early_stopping
no_repeat_ngram_size min_p beam_width_array logprobs prompt_logprobs return_context_logits
return_generation_logits exclude_input_from_output return_encoder_output return_perf_metrics
additional_model_outputs lookahead_config guided_decoding detokenize add_special_tokens
truncate_prompt_tokens skip_special_tokens spaces_between_special_tokens
"""
_SAMPLING_1_3 = "logprobs_mode logprobs_simple_format prompt_ignore_length"
SAMPLING_FIELDS = tuple((_SAMPLING + (_SAMPLING_1_3 if IS_1_3 else "")).split())
