"""Everything that is looked at before anything is started; `check` looks at the same."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.artifacts.fetch import fetch_repository
from trtllm_truss.engines.agreement import disagreements
from trtllm_truss.engines.capacity import (
    CacheKnobs,
    Capacity,
    free_after_weights,
    kv_cache_capacity,
)
from trtllm_truss.engines.findings import Finding
from trtllm_truss.engines.gpus import Gpu, visible_gpus
from trtllm_truss.engines.inspection import Engine, EngineDescription, inspect_engine
from trtllm_truss.engines.surroundings import Surroundings
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Examined:
    """An engine that has been compared with everything around it.

    Attributes:
        engine: what its folder says.
        findings: what does not fit; with an error among them it must not be started.
        capacity: what its KV cache holds on the GPUs here; None where that is not known.
    """

    engine: Engine
    findings: tuple[Finding, ...]
    capacity: Capacity | None


def examine_engine(
    settings: Settings, environment: Environment, surroundings: Surroundings
) -> Examined:
    """Fetches the engine and compares it with settings and surroundings.

    Raises:
        ArtifactError: there is no engine, or one that cannot be read.
        SettingsError: a value under `runtime` is of the wrong type.
    """
    engine = inspect_engine(fetch_engine(settings, environment))
    capacity = cache_capacity(settings, engine, surroundings.gpus or ())
    findings = disagreements(settings, engine, surroundings)
    return Examined(engine, (*findings, *(capacity.findings if capacity else ())), capacity)


def fetch_engine(settings: Settings, environment: Environment) -> Path:
    """The folder of the engine that the settings name.

    Raises:
        ArtifactError: there is none.
    """
    return fetch_repository(
        settings.engine_repository,
        settings.engine_revision,
        setting="engine_repository",
        token=environment.hf_access_token,
    )


def fetch_tokenizer(settings: Settings, environment: Environment, engine: Engine) -> TextTokenizer:
    """The tokenizer that the settings name, or the one beside the engine.

    Raises:
        ArtifactError: there is none, or one that cannot be read.
    """
    if settings.tokenizer_repository is None:
        return load_tokenizer(engine.folder)
    return load_tokenizer(
        fetch_repository(
            settings.tokenizer_repository,
            settings.tokenizer_revision,
            setting="tokenizer_repository",
            token=environment.hf_access_token,
        )
    )


def local_surroundings(environment: Environment) -> Surroundings:
    """What this machine says of itself; no GPU means that nothing is known of GPUs."""
    try:
        version: str | None = importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        version = None
    gpus = visible_gpus(environment.variables.get("CUDA_VISIBLE_DEVICES"))
    return Surroundings(gpus=gpus or None, runtime_version=version)


def cache_capacity(
    settings: Settings, engine: EngineDescription, gpus: Sequence[Gpu]
) -> Capacity | None:
    """What the KV cache would hold on these GPUs; None where that cannot be known.

    Raises:
        SettingsError: a value under `runtime` is of the wrong type.
    """
    if not gpus or engine.config is None or engine.rank_files is None:
        return None
    free_bytes = min(gpu.free_bytes for gpu in gpus)
    return kv_cache_capacity(
        engine.config,
        CacheKnobs.from_runtime(settings.runtime),
        free_after_weights(free_bytes, engine.rank_files),
    )
