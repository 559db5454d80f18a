"""The contract of Triton's ``tensorrt_llm`` model, as data: inputs and outputs.

Source: ``triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`` in
NVIDIA/TensorRT-LLM (1.0 to 1.2), ``all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`` in
triton-inference-server/tensorrtllm_backend (up to 0.19). Rows without ``since`` exist since 0.7 at
the latest; older releases used unsigned ids and are not covered. Parameters:
`settings.runtime_parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtllm_truss.releases.tables import rows_for
from trtllm_truss.releases.versions import Release, release

MODEL_NAME = "tensorrt_llm"
_FIRST: Release = (0, 7)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model.

    Attributes:
        name: as in ``config.pbtxt``.
        dtype: Triton's data type without the ``TYPE_`` prefix.
        dims: shape without the batch dimension; -1 is variable.
        optional: a request may leave the input out (meaningless for outputs).
        scalar: one value per request; the backend sees it reshaped to ``[batch]``.
        ragged: requests of different lengths may share a batch.
        since: first release that has it.
        until: first release that no longer has it.
        optional_since: first release in which it is optional, if it is.
        scalar_since: first release that reshapes it, if it is a scalar.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = True
    scalar: bool = False
    ragged: bool = False
    since: Release = _FIRST
    until: Release | None = None
    optional_since: Release = _FIRST
    scalar_since: Release = _FIRST


def _scalar(
    name: str,
    dtype: str,
    since: Release = _FIRST,
    *,
    until: Release | None = None,
    scalar_since: Release = _FIRST,
) -> Tensor:
    return Tensor(
        name, dtype, (1,), scalar=True, since=since, until=until, scalar_since=scalar_since
    )


def _ragged(
    name: str, dtype: str, dims: tuple[int, ...] = (-1,), since: Release = _FIRST
) -> Tensor:
    return Tensor(name, dtype, dims, ragged=True, since=since)


INPUTS: tuple[Tensor, ...] = (
    Tensor("input_ids", "INT32", (-1,), ragged=True, optional_since=(0, 15)),
    _ragged("encoder_input_features", "FP16", (-1, -1), (0, 15)),
    _scalar("encoder_output_lengths", "INT32", (0, 15)),
    Tensor("input_lengths", "INT32", (1,), optional=False, scalar=True),
    Tensor("request_output_len", "INT32", (1,), False, scalar=True, scalar_since=(0, 12)),
    _scalar("num_return_sequences", "INT32", (0, 14)),
    _ragged("draft_input_ids", "INT32"),
    _ragged("decoder_input_ids", "INT32", since=(0, 11)),
    _scalar("decoder_input_lengths", "INT32", (0, 11)),
    _ragged("draft_logits", "FP32", (-1, -1), (0, 9)),
    _scalar("draft_acceptance_threshold", "FP32", (0, 10)),
    _scalar("end_id", "INT32"),
    _scalar("pad_id", "INT32"),
    _ragged("stop_words_list", "INT32", (2, -1)),
    _ragged("bad_words_list", "INT32", (2, -1)),
    _ragged("embedding_bias", "FP32"),
    _scalar("beam_width", "INT32"),
    _scalar("temperature", "FP32"),
    _scalar("runtime_top_k", "INT32"),
    _scalar("runtime_top_p", "FP32"),
    _scalar("runtime_top_p_min", "FP32", (0, 10)),
    _scalar("runtime_top_p_decay", "FP32", (0, 10)),
    _scalar("runtime_top_p_reset_ids", "INT32", (0, 10)),
    _scalar("len_penalty", "FP32"),
    _scalar("early_stopping", "BOOL", (0, 10)),
    _scalar("repetition_penalty", "FP32"),
    _scalar("min_tokens", "INT32", (0, 20)),
    _scalar("beam_search_diversity_rate", "FP32", (0, 10)),
    _scalar("presence_penalty", "FP32"),
    _scalar("frequency_penalty", "FP32", (0, 8)),
    _scalar("seed", "UINT64", (0, 20)),
    _scalar("return_log_probs", "BOOL"),
    _scalar("return_context_logits", "BOOL", (0, 8)),
    _scalar("return_generation_logits", "BOOL", (0, 8)),
    _scalar("return_perf_metrics", "BOOL", (0, 19)),
    _scalar("return_num_input_tokens", "BOOL", (1, 0)),
    _scalar("return_num_output_tokens", "BOOL", (1, 0)),
    _scalar("exclude_input_in_output", "BOOL", (0, 14)),
    _scalar("stop", "BOOL", scalar_since=(0, 12)),
    _scalar("streaming", "BOOL", scalar_since=(0, 12)),
    _ragged("prompt_embedding_table", "FP16", (-1, -1)),
    _ragged("prompt_table_extra_ids", "UINT64", since=(0, 13)),
    _scalar("prompt_vocab_size", "INT32"),
    _ragged("cross_attention_mask", "BOOL", (-1, -1), (0, 15)),
    Tensor("mrope_rotary_cos_sin", "FP32", (-1,), since=(0, 19)),
    Tensor("mrope_position_deltas", "INT64", (1,), since=(0, 19)),
    _scalar("lora_task_id", "UINT64", (0, 9)),
    _ragged("lora_weights", "FP16", (-1, -1), (0, 8)),
    _ragged("lora_config", "INT32", (-1, 3), (0, 8)),
    _ragged("context_phase_params", "UINT8", since=(0, 14)),
    _ragged("skip_cross_attn_blocks", "BOOL", (1,), (0, 16)),
    _ragged("retention_token_range_starts", "INT32", since=(0, 17)),
    _ragged("retention_token_range_ends", "INT32", since=(0, 17)),
    _ragged("retention_token_range_priorities", "INT32", since=(0, 17)),
    _ragged("retention_token_range_durations_ms", "INT32", since=(0, 17)),
    _ragged("retention_decode_priority", "INT32", (1,), (0, 17)),
    _ragged("retention_decode_duration_ms", "INT32", (1,), (0, 17)),
    _ragged("guided_decoding_guide_type", "STRING", (1,), (0, 19)),
    _ragged("guided_decoding_guide", "STRING", (1,), (0, 19)),
    _ragged("lookahead_window_size", "INT32", (1,), (0, 19)),
    _ragged("lookahead_ngram_size", "INT32", (1,), (0, 19)),
    _ragged("lookahead_verification_set_size", "INT32", (1,), (0, 19)),
    # Older names; the releases that renamed them kept no alias.
    _scalar("min_length", "INT32", until=(0, 20)),
    _scalar("random_seed", "UINT64", until=(0, 20)),
    _scalar("return_kv_cache_reuse_stats", "BOOL", (0, 16), until=(0, 19)),
)

LLM_API_INPUTS: tuple[Tensor, ...] = (_scalar("num_top_logprobs", "INT32"),)
"""Inputs of the backend `llm_api` beyond those of every version: alternatives per token."""

LLM_API_OUTPUTS: tuple[Tensor, ...] = (
    Tensor("top_logprob_ids", "INT32", (-1, -1, -1)),  # (beams, tokens, alternatives)
    Tensor("top_logprobs", "FP32", (-1, -1, -1)),  # likeliest first; id -1 is padding
)
"""Its outputs, for the tokens of `output_ids` in the same response."""

OUTPUTS: tuple[Tensor, ...] = (
    Tensor("output_ids", "INT32", (-1, -1)),  # (beams, tokens)
    Tensor("sequence_length", "INT32", (-1,)),  # (beams)
    Tensor("cum_log_probs", "FP32", (-1,)),
    Tensor("output_log_probs", "FP32", (-1, -1)),
    Tensor("context_logits", "FP32", (-1, -1)),
    Tensor("generation_logits", "FP32", (-1, -1, -1)),
    Tensor("batch_index", "INT32", (1,), since=(0, 12)),
    Tensor("sequence_index", "INT32", (1,), since=(0, 14)),
    Tensor("context_phase_params", "UINT8", (-1,), since=(0, 14)),
    Tensor("kv_cache_alloc_new_blocks", "INT32", (1,), since=(0, 16)),
    Tensor("kv_cache_reused_blocks", "INT32", (1,), since=(0, 16)),
    Tensor("kv_cache_alloc_total_blocks", "INT32", (1,), since=(0, 16)),
    Tensor("arrival_time_ns", "INT64", (1,), since=(0, 19)),
    Tensor("first_scheduled_time_ns", "INT64", (1,), since=(0, 19)),
    Tensor("first_token_time_ns", "INT64", (1,), since=(0, 19)),
    Tensor("last_token_time_ns", "INT64", (1,), since=(0, 19)),
    Tensor("acceptance_rate", "FP32", (1,), since=(0, 19)),
    Tensor("total_accepted_draft_tokens", "INT32", (1,), since=(0, 19)),
    Tensor("total_draft_tokens", "INT32", (1,), since=(0, 19)),
    Tensor("num_input_tokens", "INT32", (1,), since=(1, 0)),
    Tensor("num_output_tokens", "INT32", (1,), since=(1, 0)),
)


def inputs_of(version: str | None) -> tuple[Tensor, ...]:
    """Return the inputs of a release as that release declares them; None is every release's."""
    rows = rows_for(INPUTS, version)
    if version is None:
        return rows
    here = release(version)
    return tuple(
        replace(
            row,
            optional=row.optional and row.optional_since <= here,
            scalar=row.scalar and row.scalar_since <= here,
        )
        for row in rows
    )
