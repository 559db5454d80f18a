"""The capabilities of an engine as configured, and the validation of requests against them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.releases import INPUTS, OWN_INPUTS, rows_for
from trtllm_truss.request_fields import OPTIONS, SAMPLING, RequestField
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.settings.model import Settings
from trtllm_truss.validation import is_unicode

_TOP_LOG_PROBS = 20
"""Limit of alternatives per token in TensorRT-LLM 1.3; 1.2 documents none."""

_GUIDE_TENSORS = re.compile(r"guided_decoding_guide(_type)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Limits that depend on the settings as well as on the engine.

    Attributes:
        max_beam_width: maximum number of beams per request.
        guides: guided decoding is enabled.
        adapters: LoRA adapters are supported.
        adapter_ids: ids of the adapters by name, if the engine has a fixed list.
        one_beam_width: every request must have `max_beam_width` beams.
        top_log_probs: limit of alternatives per token; 0 if there are none.
        prompt_log_probs: log probabilities of the prompt are available.
        scores_beams: these and alternatives are available in beam search.
        biased_tokens: size of the vocabulary whose logits can be biased; 0 if none can.
        max_stream_tokens: limit of prompt and answer of a stream; None for the engine's.
        kv_cache_tokens: capacity of the KV cache in tokens; None if unknown.
        control_tokens_in_messages: interpret special tokens in the text of messages.
        reasoning_limit_tokens: limit of the tokens of an answer's reasoning; None for none.
        unknown_fields: fields whose inputs this release lacks.
    """

    max_beam_width: int = 1
    guides: bool = False
    adapters: bool = False
    adapter_ids: Mapping[str, int] = field(default_factory=dict)
    one_beam_width: bool = False
    top_log_probs: int = 0
    prompt_log_probs: bool = False
    scores_beams: bool = True
    biased_tokens: int = 0
    max_stream_tokens: int | None = None
    kv_cache_tokens: int | None = None
    control_tokens_in_messages: bool = False
    reasoning_limit_tokens: int | None = None
    unknown_fields: tuple[RequestField, ...] = ()

    @classmethod
    def for_engine(
        cls,
        settings: Settings,
        engine: Engine,
        capacity: Capacity | None,
        tensorrt_llm_version: str | None = None,
    ) -> Capabilities:
        return cls(
            max_beam_width=engine.beam_limit(settings),
            adapters=engine.takes_adapters,
            adapter_ids={name: n for n, name in enumerate(settings.lora_adapters, 1)},
            one_beam_width=engine.one_beam_width,
            top_log_probs=_TOP_LOG_PROBS if engine.reports_top_log_probs else 0,
            prompt_log_probs=engine.reports_prompt_log_probs,
            scores_beams=engine.scores_beams,
            biased_tokens=engine.biased_tokens,
            guides=engine.guided_decoding_backend(settings) is not None,
            max_stream_tokens=engine.max_stream_tokens(settings.runtime),
            kv_cache_tokens=engine.kv_cache_tokens(settings, capacity),
            control_tokens_in_messages=settings.serving.control_tokens_in_messages,
            reasoning_limit_tokens=settings.serving.reasoning_limit_tokens,
            unknown_fields=_unknown_fields(tensorrt_llm_version),
        )

    def adapter_of(self, request: GenerationRequest) -> int | None:
        """Return the id of a request's adapter, chosen by number or by name."""
        return request.lora_task_id or self.adapter_ids.get(request.model or "")


def validate_capabilities(
    request: GenerationRequest, engine: Engine, capabilities: Capabilities
) -> None:
    """Validate a request against the engine.

    Raises:
        InvalidRequest: the engine does not support a field; the message has the caller's name.
    """
    _validate_beams(request, capabilities)
    _validate_adapter(request, capabilities)
    for row in (*SAMPLING, *OPTIONS):
        if row.name in engine.refused_fields and _has_effect(request, row):
            sentence = f"is not supported by {engine.answering}; leave it out."
            raise _refusal(request, row.attribute, sentence)
    for row in capabilities.unknown_fields:
        if _has_effect(request, row):
            sentence = "is not an input of this TensorRT-LLM release; leave it out."
            raise _refusal(request, row.attribute, sentence)
    largest = max(request.logit_bias, default=-1)
    if largest >= capabilities.biased_tokens:
        sentence = (
            f"holds the id {largest}; the model's ids end at {capabilities.biased_tokens - 1}."
            if capabilities.biased_tokens
            else "is not supported by this engine; leave it out."
        )
        raise _refusal(request, "logit_bias", sentence)
    _validate_log_probs(request, capabilities)
    if request.guide is not None and not capabilities.guides:
        raise _refusal(
            request,
            "guide",
            "cannot be followed: guided decoding is off (runtime.guided_decoding_backend). Leave "
            "it out.",
        )
    if request.guide is not None and not is_unicode(request.guide.text):
        raise _refusal(request, "guide", "contains a lone surrogate; send whole characters.")


def _has_effect(request: GenerationRequest, row: RequestField) -> bool:
    if row.effect is not None:
        value = getattr(request.sampling, row.attribute)
        return value is not None and row.changes(value)
    return bool(getattr(request, row.attribute) != row.default)


def _unknown_fields(version: str | None) -> tuple[RequestField, ...]:
    known = {tensor.name for tensor in (*rows_for(INPUTS, version), *OWN_INPUTS)}
    return tuple(
        row for row in (*SAMPLING, *OPTIONS) if row.tensors and known.isdisjoint(row.tensors)
    )


def _validate_beams(request: GenerationRequest, capabilities: Capabilities) -> None:
    max_beams = capabilities.max_beam_width
    if request.beam_width > max_beams:
        raise _refusal(
            request,
            "beam_width",
            f"is {request.beam_width}; this engine has at most {max_beams}. Lower it.",
        )
    if capabilities.one_beam_width and request.beam_width != max_beams:
        raise _refusal(
            request,
            "beam_width",
            f"is {request.beam_width}; this engine runs all requests with {max_beams} beams "
            f"(runtime.max_beam_width). Set it to {max_beams}.",
        )
    if request.beam_width > 1 and request.n > 1:
        raise _refusal(
            request, "n", f"is {request.n}; beam search returns the best beam only. Set it to 1."
        )


def _validate_adapter(request: GenerationRequest, capabilities: Capabilities) -> None:
    if request.lora_task_id is not None and not capabilities.adapters:
        raise _refusal(
            request, "lora_task_id", "is given, but this engine takes no adapters; leave it out."
        )
    known = capabilities.adapter_ids
    if request.lora_task_id is not None and known and request.lora_task_id not in known.values():
        raise _refusal(
            request,
            "lora_task_id",
            f"is {request.lora_task_id}; the adapters are 1 to {len(known)} (lora_adapters).",
        )


def with_callers_field(refused: InvalidRequest, request: GenerationRequest) -> InvalidRequest:
    """Replace the engine's tensor names in an error about a guide by the caller's field name."""
    if request.guide is None:
        return refused
    name = request.name("guide")
    return InvalidRequest(_GUIDE_TENSORS.sub(name, refused.message), param=name)


def _validate_log_probs(request: GenerationRequest, capabilities: Capabilities) -> None:
    if (request.log_probs or 0) > capabilities.top_log_probs:
        raise _refusal(request, "log_probs", _too_many_log_probs(request, capabilities))
    if request.scores_prompt and not capabilities.prompt_log_probs:
        raise _refusal(
            request,
            "echo",
            f"and {request.name('log_probs')} are both given; the engine has no log probabilities "
            "of the prompt. Omit one of them.",
        )
    if request.beam_width > 1 and not capabilities.scores_beams:
        field = "log_probs" if request.log_probs else "echo" if request.scores_prompt else None
        if field is not None:
            sentence = f"is not supported with {request.name('beam_width')} above 1 by this engine."
            raise _refusal(request, field, f"{sentence} Leave one of them out.")


def _too_many_log_probs(request: GenerationRequest, capabilities: Capabilities) -> str:
    if capabilities.top_log_probs:
        limit = capabilities.top_log_probs
        return f"is {request.log_probs}; the engine returns at most {limit}. Lower it."
    return (
        f"is {request.log_probs}; the engine returns the log probability of the chosen token only, "
        "which is the likeliest one only in greedy decoding. Set it to 0, or to 1 with temperature "
        "0."
    )


def _refusal(request: GenerationRequest, attribute: str, sentence: str) -> InvalidRequest:
    name = request.name(attribute)
    return InvalidRequest(f"{name} {sentence}", param=name)
