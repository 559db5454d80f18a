"""Concurrency of an engine, by its description and `runtime`."""

from __future__ import annotations

from trtllm_truss.engines.capacity import CacheKnobs, Capacity
from trtllm_truss.engines.inspection import EngineDescription, EngineKind
from trtllm_truss.engines.scheduling import MAX_UTILIZATION, scheduling_of
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.versions import release
from trtllm_truss.settings.model import Settings

_ANY_WIDTH_SINCE = (0, 10)


def batch_size(settings: Settings, engine: EngineDescription) -> int:
    """Return the requests that one scheduler of the engine runs concurrently."""
    if engine.llm_args is not None:
        return engine.max_batch_size
    return settings.runtime.max_batch_size or engine.max_batch_size


def max_beam_width(settings: Settings, engine: EngineDescription) -> int:
    """Return the limit of a request's beams: the engine's unless `runtime` lowers it.

    Where all requests have the same number it is 1 unless set.
    """
    if engine.llm_args is not None:
        return engine.max_beam_width
    default = 1 if one_beam_width(engine) else engine.max_beam_width
    return settings.runtime.max_beam_width or default


def one_beam_width(engine: EngineDescription) -> bool:
    """Return True if every request must have `max_beam_width` beams.

    TensorRT-LLM up to 0.9 refuses others ("Request with beam width 1 differs from the max beam
    width 4"; its GptManager is closed source, the text is from users' reports).
    """
    if engine.config is not None:
        return release(engine.config.assumed_version) < _ANY_WIDTH_SINCE
    return engine.kind is EngineKind.LLM_API


def first_beam_width(settings: Settings, engine: EngineDescription) -> int:
    """Return the beams of the first request."""
    return max_beam_width(settings, engine) if one_beam_width(engine) else 1


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
    ranks = engine.world_size // settings.node_count
    if devices and len(devices) != ranks:
        on_each = " on each host" if settings.node_count > 1 else ""
        raise SettingsError(
            f"config.yaml: model_metadata.runtime.gpu_device_ids names {len(devices)} GPUs, but "
            f"the engine has {ranks} ranks{on_each}; name one GPU for each."
        )
    return wanted


def scheduler_count(settings: Settings, engine: EngineDescription) -> int:
    """Return the batches that run side by side, each with a KV cache of its own.

    Source: with ``enable_attention_dp`` each rank of tensor parallelism schedules its own
    (``_fetch_new_requests`` in ``tensorrt_llm/_torch/pyexecutor/py_executor.py``, 1.0 to 1.2).
    """
    copies = instance_count(settings, engine)
    is_split = engine.llm_args is not None and engine.llm_args.get("enable_attention_dp")
    return copies * engine.tensor_parallelism if is_split else copies


def overcommits(settings: Settings, engine: EngineDescription) -> bool:
    """Return True if the engine admits more requests than its KV cache holds, and pauses some."""
    if engine.llm_args is not None:
        scheduler = engine.llm_args.get("scheduler_config") or {}
        return scheduler.get("capacity_scheduler_policy") == MAX_UTILIZATION.upper()
    if engine.config is None:  # an engine of the CPU: requests wait for their cache unless told to
        return settings.runtime.batch_scheduler_policy == MAX_UTILIZATION
    return scheduling_of(settings.runtime, engine).overcommits


def guided_decoding_backend(settings: Settings, engine: EngineDescription) -> str | None:
    """Return the name of the engine's grammar library; None without guided decoding."""
    if engine.llm_args is not None:
        return engine.llm_args.get("guided_decoding_backend")
    return settings.runtime.guided_decoding_backend


def kv_cache_tokens(
    settings: Settings, engine: EngineDescription, capacity: Capacity | None
) -> int | None:
    """Return the tokens that the KV cache of one scheduler holds; None if unknown.

    Args:
        settings: `runtime` may limit them.
        engine: the engine.
        capacity: the engine's on these GPUs; None if unknown.
    """
    if capacity is not None:
        return capacity.tokens
    return CacheKnobs.of(engine, settings.runtime).max_tokens
