"""The LoRA adapters of a checkpoint: checked by their configuration, then downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.artifacts.listing import Source, named
from trtllm_truss.artifacts.open_repository import is_on_hub, open_repository
from trtllm_truss.engines.adapter import Adapter
from trtllm_truss.engines.checkpoint.adapters import ADAPTER_FILES, parse_adapter
from trtllm_truss.errors import ArtifactError
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.mounts import Mount


@dataclass(frozen=True, slots=True)
class AdapterRepository:
    """The repository of one adapter, whose weights are not fetched yet.

    Attributes:
        name: as requests name it.
        adapter: its configuration.
        source: the repository.
    """

    name: str
    adapter: Adapter
    source: Source

    def fetch(self) -> Path:
        """Download the adapter and return its folder."""
        return self.source.fetch(ADAPTER_FILES)


def open_adapters(settings: Settings, environment: Environment) -> tuple[AdapterRepository, ...]:
    """Open the repositories of `lora_adapters` and check each adapter and the disk.

    Raises:
        ArtifactError: a repository is unreadable or holds no adapter that can be applied.
    """
    return tuple(
        _open(name, repository, environment, settings.mounts)
        for name, repository in settings.lora_adapters.items()
    )


def adapters_of(repositories: Sequence[AdapterRepository]) -> tuple[Adapter, ...]:
    return tuple(repository.adapter for repository in repositories)


def _open(
    name: str, repository: str, environment: Environment, mounts: Sequence[Mount]
) -> AdapterRepository:
    source = open_repository(
        *_revised(repository),
        setting=f"lora_adapters.{name}",
        token=environment.hf_access_token,
        mounts=mounts,
    )
    with named(source.name):
        missing = [file for file in ADAPTER_FILES if not source.listing().sizes.get(file)]
        if missing:
            raise ArtifactError(
                f"{' and '.join(missing)} is missing or empty; name a repository with an adapter "
                "that PEFT saved as safetensors."
            )
        adapter = parse_adapter(source.read(ADAPTER_FILES[0]))
    source.check_room(ADAPTER_FILES)
    return AdapterRepository(name, adapter, source)


def _revised(repository: str) -> tuple[str, str | None]:
    """Split a name on Hugging Face at ``@``; elsewhere it is a part of the name."""
    name, _, revision = repository.partition("@")
    return (name, revision or None) if is_on_hub(repository) else (repository, None)
