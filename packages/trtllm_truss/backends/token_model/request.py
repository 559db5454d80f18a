"""Input tensors of `tensorrt_llm` -> one validated request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.backends.token_model.sampling import Sampling, read_sampling
from trtllm_truss.backends.token_model.unsupported import validate_capabilities
from trtllm_truss.backends.token_model.words import Word, read_words
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.requests import Guide, Language

MAX_TOP_LOG_PROBS = 20
"""TensorRT-LLM's limit in the 1.3 pre-releases."""

CACHED_TOKENS = "cached_tokens"
"""An output that TensorRT-LLM's model lacks: prompt tokens that the KV cache had."""
GUIDE_TYPE, GUIDE_TEXT = "guided_decoding_guide_type", "guided_decoding_guide"

_LANGUAGES: tuple[Language, ...] = get_args(Language)
_ANY_JSON = '{"anyOf": [{"type": "object"}, {"type": "array"}]}'
"""XGrammar's, and so TensorRT-LLM's, meaning of the type `json`."""


@dataclass(frozen=True)
class Limits:
    """Limits of the loaded model.

    Attributes:
        context_length: maximum of tokens, prompt and answer together.
        vocab_size: token ids range from 0 to this less one.
        kv_cache_tokens: capacity of the KV cache; None if it grows.
        max_beam_width: maximum of `beam_width`.
        exclude_input_in_output: default of the request's flag of that name.
        max_input_tokens: maximum of prompt tokens, if less than the context.
        engine: the engine's name in messages.
        served: inputs of `unsupported` that this engine serves.
    """

    context_length: int
    vocab_size: int
    kv_cache_tokens: int | None = None
    max_beam_width: int = 1
    exclude_input_in_output: bool = False
    max_input_tokens: int | None = None
    engine: str = "the CPU engine"
    served: frozenset[str] = frozenset()

    @property
    def longest_prompt(self) -> int:
        """Return the maximum of prompt tokens."""
        longest = self.context_length - 1
        return longest if self.max_input_tokens is None else min(longest, self.max_input_tokens)


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """A request that the engine can serve.

    Attributes:
        id: Triton's request id, by which a `stop` request finds it; may be empty.
        prompt: token ids, INT64 [n], n > 0.
        max_new_tokens: maximum of generated tokens; fits the context.
        end_id: the token that ends the answer; None if none does.
        guide: constraint on the answer; None for any text.
        guide_bytes: memory of the compiled guide, if the sender has checked it, as the Truss does;
            None if not.
        outputs: names of the output tensors to build.
        top_log_probs: likeliest tokens to return at each place.
    """

    id: str
    prompt: NDArray[np.int64]
    max_new_tokens: int
    end_id: int | None
    stop_words: tuple[Word, ...]
    sampling: Sampling
    guide: Guide | None
    guide_bytes: int | None
    streaming: bool
    echo_prompt: bool
    outputs: frozenset[str]
    top_log_probs: int = 0

    @property
    def kv_cache_tokens(self) -> int:
        """Return the maximum of tokens held in the KV cache; the last one is never cached."""
        beam_tokens = len(self.prompt) + self.max_new_tokens - 1
        return beam_tokens * self.sampling.beam_width


def read_request(
    request_id: str,
    tensors: Tensors,
    requested_outputs: Collection[str],
    limits: Limits,
    *,
    guide_bytes: int | None = None,
) -> GenerationRequest:
    """Read and validate one request, by the names of TensorRT-LLM's `tensorrt_llm` model.

    Raises:
        InvalidRequest: it cannot be served; the caller is at fault.
    """
    validate_capabilities(tensors, limits.engine, limits.served)
    prompt = _read_prompt(tensors, limits)
    sampling = read_sampling(tensors, limits.max_beam_width, limits.engine)
    streaming = tensors.flag("streaming", False)
    if streaming and sampling.beam_width > 1:
        raise InvalidRequest(
            f"Streaming mode is only supported with beam width of 1 by {limits.engine}."
        )
    end_id = tensors.integer("end_id", -1)
    exclude_prompt = tensors.flag("exclude_input_in_output", limits.exclude_input_in_output)
    request = GenerationRequest(
        id=request_id,
        prompt=prompt,
        max_new_tokens=_read_output_len(tensors, limits.context_length - len(prompt)),
        end_id=end_id if end_id >= 0 else None,
        stop_words=read_words("stop_words_list", tensors.array("stop_words_list")),
        sampling=sampling,
        guide=_read_guide(tensors),
        guide_bytes=guide_bytes,
        streaming=streaming,
        echo_prompt=not (streaming or exclude_prompt),
        outputs=_read_outputs(tensors, requested_outputs),
        top_log_probs=_read_top_log_probs(tensors),
    )
    _check_guided(request, limits.engine)
    _check_end(request, limits.engine)
    _check_kv_cache(request, limits.kv_cache_tokens)
    return request


def _read_prompt(tensors: Tensors, limits: Limits) -> NDArray[np.int64]:
    ids = tensors.array("input_ids")
    if ids is None:
        raise InvalidRequest("input_ids is not present in the request.")
    if ids.ndim != 2 or ids.shape[0] != 1:
        raise InvalidRequest(
            f"input_ids has shape {list(ids.shape)}; send [1, n], one prompt a request."
        )
    length = tensors.integer("input_lengths", ids.shape[1])
    if not 1 <= length <= ids.shape[1]:
        raise InvalidRequest(
            f"input_lengths is {length}; with input_ids of {ids.shape[1]} tokens it must be from "
            f"1 to {ids.shape[1]}."
        )
    if length > limits.longest_prompt:
        raise InvalidRequest(
            f"Prompt length ({length}) exceeds maximum input length ({limits.longest_prompt})."
        )
    prompt = ids[0, :length].astype(np.int64)
    # OpenVINO reads past its tables, without an error, for ids that the vocabulary lacks.
    if np.min(prompt) < 0 or np.max(prompt) >= limits.vocab_size:
        raise InvalidRequest(f"input_ids must be token ids from 0 to {limits.vocab_size - 1}.")
    return prompt


def _read_output_len(tensors: Tensors, room: int) -> int:
    if tensors.array("request_output_len") is None:
        raise InvalidRequest("request_output_len is not present in the request.")
    length = tensors.integer("request_output_len", 0)
    if length < 1:
        raise InvalidRequest(f"request_output_len is {length}; send 1 or more.")
    return min(length, room)


def _read_outputs(tensors: Tensors, requested: Collection[str]) -> frozenset[str]:
    mandatory: Sequence[str] = ("output_ids", "sequence_length")
    for name in mandatory:
        if name not in requested:
            raise InvalidRequest(f"{name} tensor must be present in list of output tensors")
    on_demand = {
        "cum_log_probs": "return_log_probs",
        "output_log_probs": "return_log_probs",
        "top_logprob_ids": "num_top_logprobs",
        "top_logprobs": "num_top_logprobs",
        "num_input_tokens": "return_num_input_tokens",
        "num_output_tokens": "return_num_output_tokens",
    }
    demanded = {name for name, flag in on_demand.items() if tensors.flag(flag, False)}
    free = {*mandatory, "batch_index", "sequence_index", CACHED_TOKENS}
    return frozenset(requested) & (demanded | free)


def _read_top_log_probs(tensors: Tensors) -> int:
    count = tensors.integer("num_top_logprobs", 0)
    if not 0 <= count <= MAX_TOP_LOG_PROBS:
        raise InvalidRequest(
            f"num_top_logprobs is {count}; send a value from 0 to {MAX_TOP_LOG_PROBS}."
        )
    return count


def _read_guide(tensors: Tensors) -> Guide | None:
    kind, text = tensors.text(GUIDE_TYPE), tensors.text(GUIDE_TEXT)
    names = ", ".join(["json", *_LANGUAGES])
    if not kind:
        if text:
            raise InvalidRequest(f"{GUIDE_TEXT} is given without {GUIDE_TYPE}; send {names}.")
        return None
    if kind == "json":
        return Guide("json_schema", _ANY_JSON)
    for language in _LANGUAGES:
        if kind == language and text:
            return Guide(language, text)
        if kind == language:
            raise InvalidRequest(
                f"{GUIDE_TYPE} is {kind}, but {GUIDE_TEXT} is empty; send its text."
            )
    raise InvalidRequest(f"{GUIDE_TYPE} is {kind[:40]!r}; send {names}.")


def _check_guided(request: GenerationRequest, engine: str) -> None:
    """Refuse fields that would leave the guide; all beams share one position in it, for example."""
    for name, value in (
        ("beam_width", request.sampling.beam_width),
        ("min_tokens", request.sampling.min_tokens),
    ):
        if request.guide is not None and value > 1:
            raise InvalidRequest(
                f"{name} {value} is not supported with {GUIDE_TYPE} by {engine}; leave one of them "
                "out."
            )


def _check_end(request: GenerationRequest, engine: str) -> None:
    """Require an end id: beams would end with the model's own, guides with none."""
    beams = request.sampling.beam_width > 1
    if request.end_id is None and (beams or request.guide is not None):
        raise InvalidRequest(
            f"{'beam_width above 1' if beams else GUIDE_TYPE} needs end_id on {engine}; send the "
            "token that ends an answer."
        )


def _check_kv_cache(request: GenerationRequest, capacity: int | None) -> None:
    if capacity is not None and request.kv_cache_tokens > capacity:
        raise InvalidRequest(
            f"A prompt of {len(request.prompt)} tokens, request_output_len "
            f"{request.max_new_tokens} and beam_width {request.sampling.beam_width} need "
            f"{request.kv_cache_tokens} tokens of KV cache, which holds {capacity}; ask for less "
            "or raise max_tokens_in_paged_kv_cache."
        )
