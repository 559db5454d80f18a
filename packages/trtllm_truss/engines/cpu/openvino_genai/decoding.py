"""Conversion of one request's sampling to OpenVINO GenAI."""

from __future__ import annotations

import openvino_genai

from trtllm_truss.backends.token_model.request import GenerationRequest
from trtllm_truss.backends.token_model.sampling import Sampling
from trtllm_truss.requests import Guide, Language

_LANGUAGES: dict[Language, str] = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf_grammar": "grammar",
}
"""OpenVINO GenAI's names of guide languages."""


def generation_config(request: GenerationRequest) -> openvino_genai.GenerationConfig:
    """Convert a request; absent fields keep GenAI's neutral defaults.

    Log probabilities are those of the model before temperature and top_k or top_p. A seed repeats
    an answer, except that with prefix caching GenAI 2026.4 draws once more for a prompt that is
    entirely cached. A cached beginning can also come from generated tokens, whose keys and values
    are rounded otherwise; OpenVINO then rounds activations to 8 bits, and the logits differ
    slightly. Without prefix caching (`enable_kv_cache_reuse: false`) a seed, or greedy decoding,
    repeats an answer at any load.
    """
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_new_tokens
    if request.end_id is None:
        config.ignore_eos = True
    else:
        config.eos_token_id = request.end_id
        config.stop_token_ids = {request.end_id}
        config.min_new_tokens = min(request.sampling.min_tokens, request.max_new_tokens)
    if request.guide is not None:
        config.structured_output_config = structured_output(request.guide)
        config.min_new_tokens = 0  # the guide decides
    config.logprobs = int(
        "output_log_probs" in request.outputs or "cum_log_probs" in request.outputs
    )
    if request.sampling.beam_width > 1:
        _search_beams(config, request.sampling)
    else:
        _sample(config, request.sampling)
    return config


def structured_output(guide: Guide) -> openvino_genai.StructuredOutputConfig:
    config = openvino_genai.StructuredOutputConfig()
    setattr(config, _LANGUAGES[guide.language], guide.text)
    return config


def _sample(config: openvino_genai.GenerationConfig, sampling: Sampling) -> None:
    for name, value in sampling.chosen().items():
        setattr(config, name, value)
    if not sampling.greedy:
        config.do_sample = True
        config.rng_seed = _fold(sampling.seed)


def _search_beams(config: openvino_genai.GenerationConfig, sampling: Sampling) -> None:
    criteria = openvino_genai.StopCriteria
    config.num_beams = config.num_return_sequences = sampling.beam_width
    config.length_penalty = sampling.length_penalty
    config.stop_criteria = criteria.EARLY if sampling.early_stopping else criteria.HEURISTIC


def _fold(seed: int) -> int:
    """Fold all 64 bits of a seed into the lower 32: GenAI's generator ignores the others."""
    return (seed ^ (seed >> 32)) & 0xFFFFFFFF
