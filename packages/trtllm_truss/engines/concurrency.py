"""Concurrency of an engine, by its description and `runtime`."""

from __future__ import annotations

from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.inspection import Engine, EngineDescription
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.model import Settings


def batch_size(settings: Settings, engine: Engine) -> int:
    """Return the requests that one instance of the engine runs concurrently."""
    return settings.runtime.max_batch_size or engine.max_batch_size


def max_beam_width(settings: Settings, engine: EngineDescription) -> int:
    """Return the limit of a request's beams: the engine's unless `runtime` lowers it."""
    return settings.runtime.max_beam_width or engine.max_beam_width


def instance_count(settings: Settings, engine: EngineDescription) -> int:
    """Return the copies of an engine in one server; they share its GPU.

    Raises:
        SettingsError: several copies of an engine of several ranks, or `gpu_device_ids` without
            one GPU for each rank.
    """
    wanted = settings.runtime.instance_count or 1
    if wanted > 1 and engine.world_size > 1:
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.instance_count is {wanted}, but an engine of "
            f"{engine.world_size} ranks can have one instance only; remove it."
        )
    devices = settings.runtime.gpu_device_ids
    if devices and len(devices) != engine.world_size:
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.gpu_device_ids names {len(devices)} GPUs, but "
            f"the engine has {engine.world_size} ranks; name one GPU for each."
        )
    return wanted


def kv_cache_tokens(settings: Settings, capacity: Capacity | None) -> int | None:
    """Return the tokens that the KV cache of one instance holds; None if unknown.

    Args:
        settings: `runtime` may limit them.
        capacity: the engine's on these GPUs; None if unknown.
    """
    tokens = settings.runtime.max_tokens_in_paged_kv_cache
    return capacity.tokens if tokens is None and capacity is not None else tokens
