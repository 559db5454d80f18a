"""Input tensors of `tensorrt_llm` -> one validated request to the LLM."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.backends.token_model.request import (
    GUIDE_TYPE,
    GenerationRequest,
    Limits,
    read_request,
)
from trtllm_truss.backends.token_model.sampling import Sampling
from trtllm_truss.backends.token_model.words import Word, read_words
from trtllm_truss.engines.checkpoint.llm_api.parameters import Adapter, LlmSettings
from trtllm_truss.engines.checkpoint.samplers import honours_penalties, is_cpp_sampler
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.request_fields import SAMPLING

_SERVED = frozenset({"lora_task_id", "embedding_bias"})
_BAD_WORDS, _ALTERNATIVES = "bad_words_list", "num_top_logprobs"

_TRACE_HEADERS = ("traceparent", "tracestate")
_LOG_PROBS = ("output_log_probs", "cum_log_probs", "top_logprob_ids", "top_logprobs")


@dataclass(frozen=True, eq=False)
class LlmRequest:
    """A request that the LLM can serve.

    Attributes:
        generation: the tensors that every engine serves.
        pad_id: fills up shorter beams; None for the end id.
        bad_words: id sequences of one id each that are never generated.
        embedding_bias: added to the logits, FP32 [vocabulary]; None for none.
        adapter: the LoRA adapter with its id; None for none.
        trace_headers: of the trace that the LLM's spans belong to.
    """

    generation: GenerationRequest
    pad_id: int | None = None
    bad_words: tuple[Word, ...] = ()
    embedding_bias: NDArray[np.float32] | None = None
    adapter: tuple[int, Adapter] | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)


def served_inputs(version: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the inputs beyond those of the CPU engine, by TensorRT-LLM's version and sampler."""
    of_sampler = {
        _BAD_WORDS: honours_penalties(version, arguments),
        _ALTERNATIVES: not is_cpp_sampler(arguments, version),
    }
    return _SERVED.union(name for name, is_served in of_sampler.items() if is_served)


def read_llm_request(
    request_id: str,
    tensors: Tensors,
    requested_outputs: Collection[str],
    limits: Limits,
    settings: LlmSettings,
    parameters: str = "{}",
) -> LlmRequest:
    """Read and validate one request, by the names of TensorRT-LLM's `tensorrt_llm` model.

    Args:
        request_id: shown in the log.
        tensors: of the request.
        requested_outputs: names of outputs.
        limits: of the loaded model.
        settings: from config.pbtxt.
        parameters: the request's parameters that are no tensors, a JSON object.

    Raises:
        InvalidRequest: it cannot be served; the caller is at fault.
    """
    generation = read_request(request_id, tensors, requested_outputs, limits)
    _check_beams(generation, limits, settings)
    if _BAD_WORDS not in limits.served:
        _check_penalties(generation.sampling)
    if generation.guide is not None and not settings.guides:
        raise InvalidRequest(
            f"{GUIDE_TYPE} is not supported: the engine was started without "
            "guided_decoding_backend; set it, or leave the guide out."
        )
    pad_id = tensors.integer("pad_id", -1)
    return LlmRequest(
        generation,
        pad_id=pad_id if pad_id >= 0 else None,
        bad_words=_read_bad_words(tensors),
        embedding_bias=_read_embedding_bias(tensors, limits),
        adapter=_read_adapter(tensors, settings),
        trace_headers=_read_trace_headers(parameters, settings),
    )


def wants_log_probs(request: GenerationRequest) -> bool:
    """Return True if the response has log probabilities."""
    return not request.outputs.isdisjoint(_LOG_PROBS)


def _check_beams(request: GenerationRequest, limits: Limits, settings: LlmSettings) -> None:
    """Refuse what fails the whole batch up to 1.2: another beam width, or log probabilities.

    Source: ``TRTLLMSampler`` of tensorrt_llm/_torch/pyexecutor/sampler.py, near 1.2.1; it raises a
    ValueError in a step with several requests for beams and log probabilities.
    """
    width = request.sampling.beam_width
    if width != limits.max_beam_width:
        raise InvalidRequest(
            f"beam_width is {width}; {limits.engine} serves one width only, "
            f"max_beam_width {limits.max_beam_width}."
        )
    if width > 1 and wants_log_probs(request) and settings.llm_args.get("max_batch_size") != 1:
        raise InvalidRequest(
            "log probabilities of beams are not supported with max_batch_size above 1; leave out "
            "return_log_probs and num_top_logprobs, or set runtime.max_batch_size: 1."
        )


def _check_penalties(sampling: Sampling) -> None:
    for row in SAMPLING:
        value = getattr(sampling, row.attribute)
        if row.effect == "penalty" and row.changes(value):
            raise InvalidRequest(
                f"{row.name} {value} is not supported by the PyTorch sampler of this TensorRT-LLM; "
                "leave it out, or set sampler_type TRTLLMSampler in runtime.llm_args."
            )


def _read_bad_words(tensors: Tensors) -> tuple[Word, ...]:
    words = read_words(_BAD_WORDS, tensors.array(_BAD_WORDS))
    for word in words:
        if len(word) > 1:
            raise InvalidRequest(
                f"{_BAD_WORDS} has a word of {len(word)} tokens, which is not supported by the "
                "LLM API; send words of one token."
            )
    return words


def _read_embedding_bias(tensors: Tensors, limits: Limits) -> NDArray[np.float32] | None:
    bias = tensors.array("embedding_bias")
    if bias is None or not bias.any():
        return None
    if bias.size != limits.vocab_size:
        raise InvalidRequest(
            f"embedding_bias has {bias.size} values; send one for each of the "
            f"{limits.vocab_size} tokens."
        )
    return bias.reshape(-1).astype(np.float32)


def _read_trace_headers(parameters: str, settings: LlmSettings) -> dict[str, str]:
    if not settings.llm_args.get("otlp_traces_endpoint"):  # the LLM traces nothing
        return {}
    given = json.loads(parameters)
    return {name: str(given[name]) for name in _TRACE_HEADERS if name in given}


def _read_adapter(tensors: Tensors, settings: LlmSettings) -> tuple[int, Adapter] | None:
    number = tensors.integer("lora_task_id", 0)
    if not number:
        return None
    adapter = settings.adapters.get(number)
    if adapter is None:
        known = ", ".join(map(str, sorted(settings.adapters))) or "none"
        raise InvalidRequest(f"lora_task_id {number} is unknown; known ids: {known}.")
    return number, adapter
