"""How much an engine runs at once, as its folder and `runtime` fix it."""

from __future__ import annotations

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.inspection import Engine, EngineDescription
from trtllm_truss.engines.runtime_values import whole_number, whole_numbers
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.model import Settings

MAX_BATCH_SIZE = "max_batch_size"
INSTANCE_COUNT = "instance_count"
_DEVICES = "gpu_device_ids"
_MAX_BEAM_WIDTH = "max_beam_width"
_KV_CACHE_TOKENS = "max_tokens_in_paged_kv_cache"


def batch_size(settings: Settings, engine: Engine) -> int:
    """Requests that one instance of the engine runs at once."""
    wanted = whole_number(settings.runtime, MAX_BATCH_SIZE)
    return engine.max_batch_size if wanted is None else wanted


def max_beam_width(settings: Settings, engine: EngineDescription) -> int:
    """Beams that a request may ask for: what the engine has unless `runtime` says otherwise."""
    return whole_number(settings.runtime, _MAX_BEAM_WIDTH) or engine.max_beam_width


def instance_count(settings: Settings, engine: EngineDescription) -> int:
    """Copies of an engine in one server; they share its GPU, so an engine must have just one.

    Raises:
        SettingsError: more than one for an engine of several ranks, or `gpu_device_ids` that do
            not name one GPU for each rank.
    """
    wanted = whole_number(settings.runtime, INSTANCE_COUNT) or 1
    if wanted > 1 and engine.world_size > 1:
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{INSTANCE_COUNT} is {wanted}, but an engine of "
            f"{engine.world_size} ranks can have one instance only; remove it."
        )
    devices = whole_numbers(settings.runtime, _DEVICES)
    if devices and len(devices) != engine.world_size:
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.{_DEVICES} names {len(devices)} GPUs, but the "
            f"engine has {engine.world_size} ranks; name one GPU for each."
        )
    return wanted


def kv_cache_tokens(settings: Settings, capacity: Capacity | None) -> int | None:
    """Tokens that the KV cache of one instance holds; None if unknown.

    Args:
        settings: `runtime` may bound them.
        capacity: the engine's on these GPUs; None if unknown.
    """
    tokens = whole_number(settings.runtime, _KV_CACHE_TOKENS)
    return capacity.tokens if tokens is None and capacity is not None else tokens
