"""The version that the fake behaves as, and what follows from it."""

import math
import os
import re

VERSION = os.environ.get("TLLM_FAKE_VERSION", "1.2.1")
IS_1_3 = VERSION.startswith("1.3")
RELEASE = (*map(int, re.findall(r"\d+", VERSION)), *(() if "rc" in VERSION else (math.inf,)))
"""Its numbers, of a pre-release with its own as the fourth."""

ENGINE_ONLY = frozenset(("batching_type", "normalize_log_probs", "enable_tqdm", "fast_build"))

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
