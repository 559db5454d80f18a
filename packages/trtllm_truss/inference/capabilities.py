"""What an engine can do as it is set up here, and the refusal of what it cannot."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.concurrency import kv_cache_tokens, max_beam_width
from trtllm_truss.engines.inspection import Engine, EngineKind
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.settings.model import Settings
from trtllm_truss.validation import is_unicode

_GUIDE_TENSORS = re.compile(r"guided_decoding_guide(_type)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What requests may ask for, beside what the engine's folder says.

    Attributes:
        guides: whether answers can be made to match a guide.
        adapters: whether there can be LoRA adapters.
        max_beam_width: beams of one request at most.
        kv_cache_tokens: tokens that the KV cache holds; None where that is not known.
        control_tokens_in_messages: whether special tokens written out in messages act as such.
    """

    max_beam_width: int = 1
    guides: bool = False
    adapters: bool = False
    kv_cache_tokens: int | None = None
    control_tokens_in_messages: bool = False

    @classmethod
    def for_engine(
        cls, settings: Settings, engine: Engine, capacity: Capacity | None
    ) -> Capabilities:
        """What one request may ask of an engine.

        Args:
            settings: what the operator sets under `runtime`.
            engine: what its folder says.
            capacity: what its KV cache holds on these GPUs; None if unknown.
        """
        return cls(
            max_beam_width=max_beam_width(settings, engine),
            adapters=engine.takes_adapters,
            guides=engine.kind is EngineKind.CPU or bool(settings.runtime.guided_decoding_backend),
            kv_cache_tokens=kv_cache_tokens(settings, capacity),
            control_tokens_in_messages=settings.serving.control_tokens_in_messages,
        )


def validate_capabilities(
    request: GenerationRequest, engine: Engine, capabilities: Capabilities
) -> None:
    """Lets a request pass that asks for nothing that the engine cannot do.

    Raises:
        InvalidRequest: it does; the field is named as the caller named it.
    """
    most_beams = capabilities.max_beam_width
    if request.beam_width > most_beams:
        raise _refusal(
            request,
            "beam_width",
            f"is {request.beam_width}; this engine has at most {most_beams}. Lower it.",
        )
    if request.beam_width > 1 and request.n > 1:
        raise _refusal(
            request, "n", f"is {request.n}; of several beams only the best is given. Set it to 1."
        )
    if request.bad_words and engine.kind is EngineKind.CPU:
        raise _refusal(request, "bad_words", "is not supported by the CPU engine; leave it out.")
    if request.logit_bias:
        raise _refusal(request, "logit_bias", "is not supported by this engine; leave it out.")
    if request.log_probs:
        raise _refusal(
            request,
            "log_probs",
            f"is {request.log_probs}; the engine tells the log probability of the chosen token "
            "alone, not of others. Set it to 0.",
        )
    if request.guide is not None and not capabilities.guides:
        raise _refusal(
            request,
            "guide",
            "cannot be followed: guided decoding is off (runtime.guided_decoding_backend). Leave "
            "it out.",
        )
    if request.guide is not None and not is_unicode(request.guide.text):
        raise _refusal(request, "guide", "holds half of a surrogate pair; send whole characters.")
    if request.lora_task_id is not None and not capabilities.adapters:
        raise _refusal(
            request, "lora_task_id", "is given, but this engine takes no adapters; leave it out."
        )


def in_callers_words(refused: InvalidRequest, request: GenerationRequest) -> InvalidRequest:
    """What the engine has found wrong with a guide, which only it can read, by the field's name."""
    if request.guide is None:
        return refused
    name = request.name("guide")
    return InvalidRequest(_GUIDE_TENSORS.sub(name, refused.message), param=name)


def _refusal(request: GenerationRequest, attribute: str, sentence: str) -> InvalidRequest:
    name = request.name(attribute)
    return InvalidRequest(f"{name} {sentence}", param=name)
