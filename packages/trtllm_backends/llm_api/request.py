"""Convert the input tensors of `tensorrt_llm` to a validated request and to `SamplingParams`.

The LLM's settings come from `parameters` in config.pbtxt. One request, the canary, tests whether
the engine still generates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_backends.llm_api.adapters import Adapter
from trtllm_backends.llm_api.library import Library
from trtllm_backends.tensors import ParameterError, Parameters, Tensors, boolean, positive
from trtllm_backends.token_model.request import (
    ENGINE_DEFAULTS,
    GUIDE_TYPE,
    ModelLimits,
    Sampling,
    TensorRequest,
    Word,
    read_request,
    read_words,
)
from trtllm_truss.engines.checkpoint.samplers import (
    SPECULATION,
    drafts_within,
    honours_min_p,
    honours_penalties,
    honours_temperature,
    reports_alternatives,
)
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.request_fields import SAMPLING
from trtllm_truss.requests import Language

_ANY_ID = 2**31


@dataclass(frozen=True)
class LlmSettings:
    """Settings from config.pbtxt.

    Attributes:
        llm_args: keyword arguments of `tensorrt_llm.LLM`, without `model` and `tokenizer`.
        adapters: LoRA adapters by `lora_task_id`.
        exclude_input_in_output: default of the request's flag of that name.
        cancellation_check_s: interval of checks for cancelled requests, with few requests.
        hang_timeout_s: time without a response after which a busy LLM counts as hung.
        canary_interval_s: time without a response after which an idle LLM gets a request.
        kv_events: Unix socket for events of the KV cache; None for none.
    """

    model_folder: Path
    tokenizer_folder: Path
    llm_args: Mapping[str, Any]
    vocab_size: int = _ANY_ID
    adapters: Mapping[int, Adapter] = field(default_factory=dict)
    exclude_input_in_output: bool = False
    normalize_log_probs: bool = True
    cancellation_check_s: float = 0.1
    hang_timeout_s: float = 120.0
    canary_interval_s: float = 30.0
    kv_events: Path | None = None

    @property
    def guides(self) -> bool:
        """Return True if the LLM supports guides."""
        return bool(self.llm_args.get("guided_decoding_backend"))

    def limits(self, served: frozenset[str]) -> ModelLimits:
        """Return the limits of requests.

        Args:
            served: inputs of `token_model.request` that the library supports.
        """
        args = self.llm_args
        chunked = args.get("enable_chunked_prefill", False)
        return ModelLimits(
            context_length=args["max_seq_len"],
            vocab_size=self.vocab_size,
            max_beam_width=args.get("max_beam_width") or 1,
            exclude_input_in_output=self.exclude_input_in_output,
            max_input_tokens=None if chunked else args["max_num_tokens"],
            engine="the LLM API",
            served=served,
        )


def read_settings(config: Mapping[str, Any]) -> LlmSettings:
    """Read a model's configuration, the JSON that Triton passes to Python backends.

    Raises:
        ParameterError: a parameter is missing or has an invalid value.
    """
    parameters = Parameters(config)
    folder = parameters.get("gpt_model_path", Path, Path())
    if folder == Path():
        raise ParameterError("Parameter gpt_model_path must name the checkpoint's folder.")
    return LlmSettings(
        model_folder=folder,
        tokenizer_folder=parameters.get("tokenizer_dir", Path, folder),
        llm_args=_llm_args(parameters),
        vocab_size=parameters.get("vocab_size", positive, _ANY_ID),
        adapters=parameters.get("lora_adapters", _adapters, {}),
        exclude_input_in_output=parameters.get("exclude_input_in_output", boolean, False),
        normalize_log_probs=parameters.get("normalize_log_probs", boolean, True),
        cancellation_check_s=parameters.get("cancellation_check_period_ms", positive, 100) / 1000,
        hang_timeout_s=parameters.get("hang_timeout_s", float, 120.0),
        canary_interval_s=parameters.get("canary_interval_s", float, 30.0),
        kv_events=parameters.get("kv_events", Path, None),
    )


def _llm_args(parameters: Parameters) -> dict[str, Any]:
    args: dict[str, Any] = parameters.get("llm_args", json.loads, {})
    for name in ("max_seq_len", "max_num_tokens"):
        if not isinstance(args.get(name), int):
            raise ParameterError(
                f"Parameter llm_args lacks {name}; the Truss writes it, so do not leave it out."
            )
    return args


def _adapters(text: str) -> dict[int, Adapter]:
    adapters = json.loads(text).items()
    return {int(number): Adapter(int(number), **adapter) for number, adapter in adapters}


_SERVED = frozenset({"lora_task_id"})
_BIAS, _BAD_WORDS = "embedding_bias", "bad_words_list"
_MIN_P, _TEMPERATURE = "min_p", "temperature"
_LOG_PROB, _ALTERNATIVES = "return_log_probs", "num_top_logprobs"

_TRACE_HEADERS = ("traceparent", "tracestate")
_LOG_PROBS = ("output_log_probs", "cum_log_probs", "top_logprob_ids", "top_logprobs")


@dataclass(frozen=True, eq=False)
class LlmRequest:
    """A request that the LLM can serve.

    Attributes:
        generation: the tensors that every engine supports.
        pad_id: fills shorter beams; None uses the end id.
        bad_words: single-token words that are never generated.
        embedding_bias: added to the logits, FP32 [vocabulary]; None for none.
        adapter: the LoRA adapter; None for none.
        trace_headers: headers of the trace that the LLM's spans belong to.
    """

    generation: TensorRequest
    pad_id: int | None = None
    bad_words: tuple[Word, ...] = ()
    embedding_bias: NDArray[np.float32] | None = None
    adapter: Adapter | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)


def served_inputs(version: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return the inputs beyond the CPU engine's, by TensorRT-LLM version and sampler."""
    within = drafts_within(version, arguments)
    of_sampler = {
        _BIAS: not within,
        _BAD_WORDS: honours_penalties(version, arguments),
        _MIN_P: honours_min_p(version, arguments),
        _TEMPERATURE: honours_temperature(version, arguments),
        _LOG_PROB: not within,
        _ALTERNATIVES: reports_alternatives(version, arguments),
    }
    return _SERVED.union(name for name, is_served in of_sampler.items() if is_served)


def read_llm_request(
    request_id: str,
    tensors: Tensors,
    requested_outputs: Collection[str],
    limits: ModelLimits,
    settings: LlmSettings,
    parameters: str = "{}",
) -> LlmRequest:
    """Read and validate one request, by the names of TensorRT-LLM's `tensorrt_llm` model.

    Args:
        request_id: shown in the log.
        parameters: the request's non-tensor parameters, a JSON object.

    Raises:
        InvalidRequest: it cannot be served; the caller is at fault.
    """
    generation = read_request(request_id, tensors, requested_outputs, limits)
    _check_beams(generation, limits, settings)
    _check_sampler(generation.sampling, limits.served, settings)
    if _LOG_PROB not in limits.served:
        _check_drafts(generation)
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


def wants_log_probs(request: TensorRequest) -> bool:
    """Return True if the response has log probabilities."""
    return not request.outputs.isdisjoint(_LOG_PROBS)


def _check_beams(request: TensorRequest, limits: ModelLimits, settings: LlmSettings) -> None:
    """Refuse what fails the whole batch up to 1.2: other beam widths, or log probabilities.

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


def _check_sampler(sampling: Sampling, served: Set[str], settings: LlmSettings) -> None:
    """Refuse values that the sampler would drop."""
    drafts = settings.llm_args.get(SPECULATION)
    remedy = f"remove {SPECULATION} from" if drafts else "set sampler_type TRTLLMSampler in"
    refused = []
    if _BAD_WORDS not in served:
        penalties = [row for row in SAMPLING if row.effect == "penalty"]
        refused += [row.name for row in penalties if row.changes(getattr(sampling, row.attribute))]
    decoding = sampling.decoding
    if decoding.min_p and _MIN_P not in served:
        refused.append(_MIN_P)
    if not decoding.is_greedy and _TEMPERATURE not in served:
        refused += [_TEMPERATURE] * (decoding.temperature != 1)
        refused += ["top_k with top_p"] * (decoding.top_k > 0 and decoding.top_p < 1)
    for name in refused:
        value = f" {getattr(sampling, name)}" if hasattr(sampling, name) else ""
        raise InvalidRequest(
            f"{name}{value} is not supported by the PyTorch sampler of this TensorRT-LLM; leave it "
            f"out, or {remedy} runtime.llm_args."
        )


def _check_drafts(request: TensorRequest) -> None:
    """Refuse what the sampler of drafting within the model drops, or what fails its whole step.

    Source: ``MTPSampler`` of tensorrt_llm/_torch/speculative/mtp.py, near 1.0 to 1.2: it asserts
    that no request in a step asks for log probabilities.
    """
    if wants_log_probs(request):
        raise InvalidRequest(
            f"log probabilities are not supported with {SPECULATION}; leave out return_log_probs "
            f"and num_top_logprobs, or remove {SPECULATION} from runtime.llm_args."
        )
    if request.sampling.min_tokens > 1:
        raise InvalidRequest(
            f"min_tokens {request.sampling.min_tokens} is not supported with {SPECULATION}; leave "
            f"it out, or remove {SPECULATION} from runtime.llm_args."
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


def _read_embedding_bias(tensors: Tensors, limits: ModelLimits) -> NDArray[np.float32] | None:
    bias = tensors.array(_BIAS)
    if bias is None or not bias.any():
        return None
    if bias.size != limits.vocab_size:
        raise InvalidRequest(
            f"{_BIAS} has {bias.size} values; send one for each of the {limits.vocab_size} tokens."
        )
    return bias.reshape(-1).astype(np.float32)


def _read_trace_headers(parameters: str, settings: LlmSettings) -> dict[str, str]:
    if not settings.llm_args.get("otlp_traces_endpoint"):  # the LLM traces nothing
        return {}
    given = json.loads(parameters)
    return {name: str(given[name]) for name in _TRACE_HEADERS if name in given}


def _read_adapter(tensors: Tensors, settings: LlmSettings) -> Adapter | None:
    number = tensors.integer("lora_task_id", 0)
    if not number:
        return None
    adapter = settings.adapters.get(number)
    if adapter is None:
        known = ", ".join(map(str, sorted(settings.adapters))) or "none"
        raise InvalidRequest(f"lora_task_id {number} is unknown; known ids: {known}.")
    return adapter


_LANGUAGES: dict[Language, str] = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
}
"""Fields of `GuidedDecodingParams`, of which exactly one may be set."""


def sampling_params(library: Library, request: LlmRequest) -> Any:
    """Convert a request; fields that it leaves open stay unset.

    Single-token stop words finish the choice in the engine, longer ones in `generation`, because no
    public field accepts them. With an `end_id`, the library does not look up the model's own EOS
    tokens.

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
    """Return the library's tensor, without creating a Python number per token of the vocabulary.

    Source: ``SamplingParams.embedding_bias`` of tensorrt_llm/sampling_params.py, 1.2.1.
    """
    torch = sys.modules.get("torch")  # tensorrt_llm imports it
    return values.tolist() if torch is None else torch.from_numpy(values)


def _end(request: LlmRequest) -> dict[str, Any]:
    """Return the fields for EOS; `ignore_eos` makes the library drop all stop words."""
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
    if sampling.decoding.is_greedy:
        return {**sampling.chosen()}
    return {"seed": sampling.seed, **sampling.chosen()}


def canary_request(beam_width: int) -> LlmRequest:
    """Return a request for one token after a one-token prompt."""
    return LlmRequest(
        TensorRequest(
            id="canary",
            prompt=np.zeros(1, np.int64),
            max_new_tokens=1,
            end_id=None,
            stop_words=(),
            sampling=Sampling(**ENGINE_DEFAULTS, beam_width=beam_width),
            guide=None,
            guide_bytes=None,
            streaming=True,
            echo_prompt=False,
            outputs=frozenset(("output_ids", "sequence_length")),
        )
    )
