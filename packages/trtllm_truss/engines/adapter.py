"""One LoRA adapter, as an engine takes it, and its repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.artifacts.listing import Source


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter.

    Attributes:
        modules: the layers that it changes, by TensorRT-LLM's names.
    """

    rank: int
    modules: frozenset[str]


@dataclass(frozen=True, slots=True)
class AdapterRepository:
    """The repository of one adapter, whose weights are not fetched yet.

    Attributes:
        name: as requests name it.
        repository: its name in config.yaml, without the revision.
        revision: as config.yaml names it.
    """

    name: str
    repository: str
    revision: str | None
    adapter: Adapter
    source: Source
    files: tuple[str, ...]

    def fetch(self) -> Path:
        """Download the adapter and return its folder."""
        return self.source.fetch(self.files)


def adapters_of(repositories: Sequence[AdapterRepository]) -> tuple[Adapter, ...]:
    return tuple(repository.adapter for repository in repositories)
