"""Everything that is looked at before anything is started; `check` looks at the same.

The engine's `config.json` alone is read first and compared with everything around it; only an
engine that fits, and whose tokenizer is there too, is fetched.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.artifacts.local import open_folder
from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.engines.capacity import (
    CacheKnobs,
    Capacity,
    free_after_weights,
    kv_cache_capacity,
)
from trtllm_truss.engines.compatibility.check import check_compatibility
from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.engines.diagnostics import Diagnostic, Severity
from trtllm_truss.engines.file_checks import check_files
from trtllm_truss.engines.gpus import Gpu, visible_gpus
from trtllm_truss.engines.inspection import Engine, EngineDescription, inspect_engine
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.repositories import EngineRepository, TokenizerRepository
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings


@dataclass(frozen=True, slots=True)
class ResolvedEngine:
    """An engine that has been compared with everything around it.

    Attributes:
        engine: what its folder says.
        tokenizer_folder: where its tokenizer is.
        findings: what does not fit and does not stop it.
        capacity: what its KV cache holds on the GPUs here; None where that is not known.
    """

    engine: Engine
    tokenizer_folder: Path
    findings: tuple[Diagnostic, ...]
    capacity: Capacity | None


def resolve_engine(
    settings: Settings,
    environment: Environment,
    host: HostInfo,
    built: Path | None = None,
) -> ResolvedEngine:
    """Compares the engine with all around it; if it fits, fetches it and the tokenizer at once.

    Args:
        settings: what to serve.
        environment: secrets and variables.
        host: what is known of this machine.
        built: the folder of the engine that was built, where the settings name none.

    Raises:
        ArtifactError: there is no engine or no tokenizer, or one that cannot be read.
        SettingsError: the engine does not fit, or a value under `runtime` is of the wrong type.
    """
    repository = open_engine(settings, environment, built)
    described = repository.describe()
    if described is not None:
        _refuse(_examined(settings, described, host)[0])
    paths = [*repository.engine_paths(described), *own_tokenizer_paths(settings, repository)]
    repository.source.check_room(paths)
    tokenizer = open_tokenizer(settings, environment)
    findings = tokenizer.examine(described) if tokenizer else []
    with ThreadPoolExecutor(1) as aside:
        fetched = aside.submit(tokenizer.fetch) if tokenizer else None
        folder = repository.source.fetch(paths)
        tokenizer_folder = fetched.result() if fetched else None
    engine = inspect_engine(folder)
    check_files(engine, folder)
    own, capacity = _examined(settings, engine, host)
    _refuse(own)
    tokenizer_folder = tokenizer_folder or engine.tokenizer_folder
    return ResolvedEngine(engine, tokenizer_folder, (*findings, *own), capacity)


def open_engine(
    settings: Settings, environment: Environment, built: Path | None = None
) -> EngineRepository:
    """The engine repository that the settings name, listed but not fetched.

    Raises:
        ArtifactError: it cannot be read, or holds no engine.
        SettingsError: they name none, and none was built.
    """
    if settings.engine_repository is not None:
        source = open_repository(
            settings.engine_repository,
            settings.engine_revision,
            setting="engine_repository",
            token=environment.hf_access_token,
        )
    elif built is not None:
        source = open_folder(built, setting="build")
    else:
        raise SettingsError(
            "config.yaml: model_metadata names no engine_repository; name one, or make the engine "
            "with `trtllm-truss build`."
        )
    return EngineRepository(source)


def open_tokenizer(settings: Settings, environment: Environment) -> TokenizerRepository | None:
    """The tokenizer's repository, not listed yet; None if it lies beside the engine.

    Raises:
        ArtifactError: there is no such folder or package.
    """
    if settings.tokenizer_repository is None:
        return None
    source = open_repository(
        settings.tokenizer_repository,
        settings.tokenizer_revision,
        setting="tokenizer_repository",
        token=environment.hf_access_token,
    )
    return TokenizerRepository(
        source, settings.tokenizer_repository, trust_remote_code=settings.trust_remote_code
    )


def own_tokenizer_paths(settings: Settings, repository: EngineRepository) -> list[str]:
    """The tokenizer's files in the engine repository; none if it has a repository of its own.

    Raises:
        ArtifactError: there is none, or one that must not be used.
    """
    if settings.tokenizer_repository is not None:
        return []
    return repository.tokenizer_paths(trust_remote_code=settings.trust_remote_code)


def fetch_engine(settings: Settings, environment: Environment) -> Path:
    """The folder of the engine repository that the settings name, with all that is needed in it.

    Raises:
        ArtifactError: there is none.
    """
    repository = open_engine(settings, environment)
    return repository.source.fetch(repository.engine_paths(repository.describe()))


def local_host_info(environment: Environment) -> HostInfo:
    """What this machine says of itself; no GPU means that nothing is known of GPUs."""
    gpus = visible_gpus(environment.variables.get("CUDA_VISIBLE_DEVICES"))
    return HostInfo(gpus=gpus or None, runtime_version=installed_version())


def installed_version() -> str | None:
    """Return the version of the TensorRT-LLM that is installed here."""
    try:
        return importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None


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


def _examined(
    settings: Settings, engine: EngineDescription, host: HostInfo
) -> tuple[list[Diagnostic], Capacity | None]:
    findings = check_compatibility(settings, engine, host)
    capacity = cache_capacity(settings, engine, host.gpus or ())
    return [*findings, *(capacity.diagnostics if capacity else ())], capacity


def _refuse(findings: Sequence[Diagnostic]) -> None:
    errors = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise SettingsError(" ".join(errors))
