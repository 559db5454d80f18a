"""How much an engine can run at once, as admission to it needs to know."""

from __future__ import annotations

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.inspection import Engine, EngineKind
from trtllm_truss.engines.runtime_values import whole_number
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.capabilities import Capabilities
from trtllm_truss.serving.rendering import batch_size, instance_count, max_beam_width
from trtllm_truss.settings.model import Settings

_SPARE_SHARE = 8
_KV_CACHE_TOKENS = "max_tokens_in_paged_kv_cache"
_GUIDING = "guided_decoding_backend"
_SCHEDULER_POLICY = "batch_scheduler_policy"
_MAX_UTILIZATION = "max_utilization"


def admission_for(settings: Settings, engine: Engine, capacity: Capacity | None) -> Admission:
    """The admission to one engine.

    An eighth more requests than the batch takes, so that a successor is there when one ends. The
    KV cache bounds the tokens reserved, as the engine itself reserves them; not with the policy
    `max_utilization`, by which it takes in more and pauses what does not fit.

    Args:
        settings: what the operator sets under `runtime`.
        engine: what its folder says.
        capacity: what its KV cache holds on these GPUs; None where that is not known.
    """
    batch = batch_size(settings, engine) * instance_count(settings, engine)
    tokens = _kv_cache_tokens(settings, capacity)
    if tokens is not None:
        tokens *= instance_count(settings, engine)
    if settings.runtime.get(_SCHEDULER_POLICY) == _MAX_UTILIZATION:
        tokens = None
    return Admission(batch + -(-batch // _SPARE_SHARE), tokens, settings.serving)


def capabilities_of(settings: Settings, engine: Engine, capacity: Capacity | None) -> Capabilities:
    """What one request may ask of an engine.

    Args:
        settings: what the operator sets under `runtime`.
        engine: what its folder says.
        capacity: as for `admission_for`.
    """
    return Capabilities(
        max_beam_width=max_beam_width(settings, engine),
        adapters=engine.takes_adapters,
        guides=engine.kind is EngineKind.CPU or bool(settings.runtime.get(_GUIDING)),
        kv_cache_tokens=_kv_cache_tokens(settings, capacity),
        control_tokens_in_messages=settings.serving.control_tokens_in_messages,
    )


def _kv_cache_tokens(settings: Settings, capacity: Capacity | None) -> int | None:
    """Tokens that the KV cache of one instance holds."""
    tokens = whole_number(settings.runtime, _KV_CACHE_TOKENS)
    return capacity.tokens if tokens is None and capacity is not None else tokens
