"""Inputs of `tensorrt_llm` that an engine lacks: neutral values pass, others are refused."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from numpy.typing import NDArray

from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.backends.token_model.words import read_words
from trtllm_truss.errors import InvalidRequest

_NEUTRAL: dict[str, tuple[float, ...]] = {
    "draft_acceptance_threshold": (0,),
    "num_return_sequences": (0, 1),
    "runtime_top_p_min": (0, 1e-6),
    "runtime_top_p_decay": (0, 1),
    "runtime_top_p_reset_ids": (-1,),
    "beam_search_diversity_rate": (0,),
    "return_context_logits": (0,),
    "return_generation_logits": (0,),
    "return_kv_cache_reuse_stats": (0,),
    "return_perf_metrics": (0,),
    "prompt_vocab_size": (0,),
    "lora_task_id": (0,),
    "num_top_logprobs": (0,),
    "embedding_bias": (0,),
}
"""Inputs and their values that change nothing."""

_EMPTY = frozenset((
    "encoder_input_features", "encoder_output_lengths", "decoder_input_ids",
    "decoder_input_lengths", "draft_input_ids", "draft_logits", "prompt_embedding_table",
    "prompt_table_extra_ids", "cross_attention_mask", "skip_cross_attn_blocks",
    "mrope_rotary_cos_sin", "mrope_position_deltas", "lora_weights", "lora_config",
    "context_phase_params", "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities", "retention_token_range_durations_ms",
    "retention_decode_priority", "retention_decode_duration_ms", "lookahead_window_size",
    "lookahead_ngram_size", "lookahead_verification_set_size",
))  # fmt: skip
"""Inputs that change nothing only while empty, or an empty string."""


def validate_capabilities(tensors: Tensors, engine: str, served: Set[str]) -> None:
    """Refuse inputs that the engine lacks, by name.

    Args:
        tensors: the inputs.
        engine: its name in messages.
        served: inputs of the tables above that it serves.

    Raises:
        InvalidRequest: such an input has a value that would have an effect.
    """
    for name, array in tensors:
        if array.size and name not in served and _asks_for_something(name, array):
            raise InvalidRequest(f"{name} is not supported by {engine}; leave it out.")


def _asks_for_something(name: str, array: NDArray[Any]) -> bool:
    if name == "bad_words_list":
        return bool(read_words(name, array))
    if name in _EMPTY:
        return bool(array.dtype != object or array.any())
    neutral = _NEUTRAL.get(name)
    return neutral is not None and not all(
        any(abs(value - allowed) < 1e-9 for allowed in neutral) for value in array.ravel().tolist()
    )
