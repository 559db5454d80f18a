"""The two repositories that the settings name: what of them is needed, and getting it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtllm_truss.artifacts.source import Source
from trtllm_truss.engines.contents import check_listing, needed_files
from trtllm_truss.engines.inspection import EngineDescription, inspect_files
from trtllm_truss.engines.layout import Layout, find_engine
from trtllm_truss.errors import ArtifactError
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
        with _named(source):
            self._placement = find_engine(self._sizes)

    def describe(self) -> EngineDescription | None:
        """The engine from its `config.json` alone; None for a GGUF file, which describes itself."""
        if self._placement.layout is Layout.GGUF:
            return None
        with _named(self.source):
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
        with _named(self.source):
            names = select_tokenizer(sizes, trust_remote_code=trust_remote_code)
        return self._placement.tokenizer_paths(names)


def tokenizer_paths(source: Source, *, trust_remote_code: bool) -> list[str]:
    """The files of a tokenizer that has a repository of its own; see `EngineRepository`."""
    sizes = source.listing().sizes
    with _named(source):
        return select_tokenizer(sizes, trust_remote_code=trust_remote_code)


@contextmanager
def _named(source: Source) -> Iterator[None]:
    """Puts the repository's name before what is said about its contents."""
    try:
        yield
    except ArtifactError as error:
        if error.message.startswith(source.name):
            raise
        raise ArtifactError(f"{source.name}: {error.message}") from error
