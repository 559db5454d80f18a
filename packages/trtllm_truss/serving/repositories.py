"""The two repositories that the settings name: what of them is needed, and getting it."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.artifacts.source import Source, named
from trtllm_truss.engines.diagnostics import Diagnostic
from trtllm_truss.engines.file_checks import check_listing, check_tokenizer, needed_files
from trtllm_truss.engines.inspection import EngineDescription, inspect_files
from trtllm_truss.engines.layout import Layout, find_engine
from trtllm_truss.text.tokenizer_selection import select_tokenizer


class EngineRepository:
    """Where an engine lies; every method raises `ArtifactError` with the repository's name."""

    def __init__(self, source: Source) -> None:
        """Lists a repository and finds the engine in it.

        Args:
            source: the repository.

        Raises:
            ArtifactError: it cannot be read, or holds no engine.
        """
        self.source = source
        self._sizes = source.listing().sizes
        with named(source.name):
            self._placement = find_engine(self._sizes)

    def describe(self) -> EngineDescription | None:
        """The engine from its `config.json` alone; None for a GGUF file, which describes itself."""
        if self._placement.layout is Layout.GGUF:
            return None
        with named(self.source.name):
            engine = inspect_files(self._sizes, self.source.read)
            check_listing(engine, self.source.listing())
        return engine

    def engine_paths(self, engine: EngineDescription | None) -> list[str]:
        """The files that serving it takes.

        Args:
            engine: what `describe` has returned.
        """
        return needed_files(self._placement, self._sizes, engine)

    def tokenizer_paths(self, *, trust_remote_code: bool) -> list[str]:
        """The files of the tokenizer beside it.

        Args:
            trust_remote_code: whether it may be a program.
        """
        sizes = self._placement.tokenizer_sizes(self._sizes)
        with named(self.source.name):
            names = select_tokenizer(sizes, trust_remote_code=trust_remote_code)
        return self._placement.tokenizer_paths(names)


class TokenizerRepository:
    """Where a tokenizer of its own lies; every method raises `ArtifactError` with its name."""

    def __init__(self, source: Source, name: str, *, trust_remote_code: bool) -> None:
        """Describes a repository; nothing is asked yet.

        Args:
            source: the repository.
            name: as the settings have it.
            trust_remote_code: whether it may be a program.
        """
        self._source = source
        self._repository = name
        self._trust_remote_code = trust_remote_code

    def examine(self, engine: EngineDescription | None) -> list[Diagnostic]:
        """Looks at rights, files and disk before tens of gigabytes of engine are fetched.

        Args:
            engine: what to compare it with; None if that is not known yet.
        """
        self._source.check_room(self._paths())
        if engine is None:
            return []
        return list(check_tokenizer(engine, self._repository, self._source.listing().commit))

    def fetch(self) -> Path:
        """The folder that holds it."""
        return self._source.fetch(self._paths())

    def _paths(self) -> list[str]:
        sizes = self._source.listing().sizes
        with named(self._source.name):
            return select_tokenizer(sizes, trust_remote_code=self._trust_remote_code)
