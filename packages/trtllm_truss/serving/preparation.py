"""Everything that is looked at before anything is started; `check` looks at the same.

The engine's `config.json` alone is read first and compared with everything around it; only an
engine that fits, and whose tokenizer is there too, is fetched.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.artifacts.fetch import open_repository
from trtllm_truss.artifacts.local import open_folder
from trtllm_truss.artifacts.source import Source
from trtllm_truss.engines.agreement import disagreements
from trtllm_truss.engines.capacity import (
    CacheKnobs,
    Capacity,
    free_after_weights,
    kv_cache_capacity,
)
from trtllm_truss.engines.contents import check_files, tokenizer_finding
from trtllm_truss.engines.findings import Finding, Severity
from trtllm_truss.engines.gpus import Gpu, visible_gpus
from trtllm_truss.engines.inspection import Engine, EngineDescription, inspect_engine
from trtllm_truss.engines.surroundings import Surroundings
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.repositories import EngineRepository, tokenizer_paths
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Examined:
    """An engine that has been compared with everything around it.

    Attributes:
        engine: what its folder says.
        findings: what does not fit and does not stop it.
        capacity: what its KV cache holds on the GPUs here; None where that is not known.
    """

    engine: Engine
    findings: tuple[Finding, ...]
    capacity: Capacity | None


def examine_engine(
    settings: Settings,
    environment: Environment,
    surroundings: Surroundings,
    built: Path | None = None,
) -> Examined:
    """Compares the engine with all around it; if it fits, fetches it and the tokenizer at once.

    Args:
        settings: what to serve.
        environment: secrets and variables.
        surroundings: what is known of this machine.
        built: the folder of the engine that was built, where the settings name none.

    Raises:
        ArtifactError: there is no engine or no tokenizer, or one that cannot be read.
        SettingsError: the engine does not fit, or a value under `runtime` is of the wrong type.
    """
    repository = open_engine(settings, environment, built)
    described = repository.describe()
    if described is not None:
        _refuse(_examined(settings, described, surroundings)[0])
    paths = [*repository.engine_paths(described), *own_tokenizer_paths(settings, repository)]
    repository.source.check_room(paths)
    findings = [*tokenizer_findings(settings, environment, described)]
    with ThreadPoolExecutor(1) as aside:
        beside = settings.tokenizer_repository is None
        tokenizer = None if beside else aside.submit(fetch_tokenizer_folder, settings, environment)
        folder = repository.source.fetch(paths)
        if tokenizer is not None:
            tokenizer.result()
    engine = inspect_engine(folder)
    check_files(engine, folder)
    own, capacity = _examined(settings, engine, surroundings)
    _refuse(own)
    return Examined(engine, (*findings, *own), capacity)


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


def open_tokenizer(settings: Settings, environment: Environment) -> Source | None:
    """The tokenizer's repository, not listed yet; None if it lies beside the engine.

    Raises:
        ArtifactError: there is no such folder or package.
    """
    if settings.tokenizer_repository is None:
        return None
    return open_repository(
        settings.tokenizer_repository,
        settings.tokenizer_revision,
        setting="tokenizer_repository",
        token=environment.hf_access_token,
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


def fetch_tokenizer(
    settings: Settings, environment: Environment, engine: Engine | None = None
) -> TextTokenizer:
    """The tokenizer that the settings name, or the one beside the engine.

    Args:
        settings: what to serve.
        environment: secrets and variables.
        engine: needed only if the settings name no tokenizer.

    Raises:
        ArtifactError: there is none, or one that cannot be read.
    """
    folder = fetch_tokenizer_folder(settings, environment, engine)
    return load_tokenizer(folder, trust_remote_code=settings.trust_remote_code)


def fetch_tokenizer_folder(
    settings: Settings, environment: Environment, engine: Engine | None = None
) -> Path:
    """The folder of the same, for what reads it by itself; arguments and errors as there."""
    source = open_tokenizer(settings, environment)
    if source is not None:
        paths = tokenizer_paths(source, trust_remote_code=settings.trust_remote_code)
        return source.fetch(paths)
    assert engine is not None
    return engine.tokenizer_folder


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


def tokenizer_findings(
    settings: Settings, environment: Environment, engine: EngineDescription | None
) -> Iterator[Finding]:
    """Looks at a tokenizer of its own before tens of gigabytes of engine are fetched.

    Raises:
        ArtifactError: it cannot be used, or does not fit on the disk.
    """
    source = open_tokenizer(settings, environment)
    if source is None:
        return
    source.check_room(tokenizer_paths(source, trust_remote_code=settings.trust_remote_code))
    if engine is not None:
        yield from tokenizer_finding(engine, settings.tokenizer_repository, source.listing().commit)


def _examined(
    settings: Settings, engine: EngineDescription, surroundings: Surroundings
) -> tuple[list[Finding], Capacity | None]:
    findings = disagreements(settings, engine, surroundings)
    capacity = cache_capacity(settings, engine, surroundings.gpus or ())
    return [*findings, *(capacity.findings if capacity else ())], capacity


def _refuse(findings: Sequence[Finding]) -> None:
    errors = [finding.sentence for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise SettingsError(" ".join(errors))
