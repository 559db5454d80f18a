"""Conversion of one request to TensorRT-LLM's `SamplingParams`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.backends.token_model.sampling import Sampling
from trtllm_truss.engines.checkpoint.llm_api.library import Library
from trtllm_truss.engines.checkpoint.llm_api.request import LlmRequest, wants_log_probs
from trtllm_truss.requests import Language

_LANGUAGES: dict[Language, str] = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
}
"""Fields of `GuidedDecodingParams`, of which exactly one may be set."""


def sampling_params(library: Library, request: LlmRequest) -> Any:
    """Convert a request; fields that a request leaves open stay unset.

    Stop words of one token end the answer in the engine, longer ones in `generation`: no public
    field takes them. With an `end_id` the library does not look up the model's own end tokens.

    Raises:
        ValueError: a value is out of the library's range.
    """
    generation = request.generation
    given: dict[str, Any] = {
        "max_tokens": generation.max_new_tokens,  # else 32
        "detokenize": False,
        "include_stop_str_in_output": True,
        **_end(request),
        **_decoding(generation.sampling),
    }
    if generation.guide is not None:
        field = _LANGUAGES[generation.guide.language]
        given["guided_decoding"] = library.guided_decoding_params(**{field: generation.guide.text})
    if wants_log_probs(generation):
        given["logprobs"] = max(1, generation.top_log_probs)  # 0 means none up to 1.2
    if request.bad_words:
        given["bad_token_ids"] = [token for word in request.bad_words for token in word]
    if request.embedding_bias is not None:
        given["embedding_bias"] = _as_tensor(request.embedding_bias)
    return library.sampling_params(**given)


def _as_tensor(values: NDArray[np.float32]) -> Any:
    """Return the library's tensor, without a Python number per token of the vocabulary.

    Source: ``SamplingParams.embedding_bias`` of tensorrt_llm/sampling_params.py, 1.2.1.
    """
    torch = sys.modules.get("torch")  # which tensorrt_llm imports
    return values.tolist() if torch is None else torch.from_numpy(values)


def _end(request: LlmRequest) -> dict[str, Any]:
    """Return the fields for the end; `ignore_eos` makes the library drop all stop words."""
    generation = request.generation
    if generation.end_id is None:
        return {"end_id": 0, "pad_id": 0, "ignore_eos": True}
    end = {"end_id": generation.end_id, "pad_id": request.pad_id, "stop_token_ids": None}
    if request.pad_id is None:
        end["pad_id"] = generation.end_id
    if single := [word[0] for word in generation.stop_words if len(word) == 1]:
        end["stop_token_ids"] = single  # type: ignore[assignment]
    if generation.sampling.min_tokens > 1 and generation.guide is None:
        end["min_tokens"] = min(generation.sampling.min_tokens, generation.max_new_tokens)
    return end


def _decoding(sampling: Sampling) -> dict[str, Any]:
    if sampling.beam_width > 1:
        return {
            "use_beam_search": True,
            "best_of": sampling.beam_width,
            "n": sampling.beam_width,
            "length_penalty": sampling.length_penalty,
            "early_stopping": int(sampling.early_stopping),
        }
    if sampling.greedy:  # the library decodes greedily if nothing is set
        return {**sampling.chosen()}
    return {"temperature": sampling.temperature, "seed": sampling.seed, **sampling.chosen()}
