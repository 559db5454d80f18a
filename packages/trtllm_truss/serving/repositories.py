"""The engine and tokenizer repositories: select the needed files and download them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from trtllm_truss.artifacts.listing import Source, named
from trtllm_truss.engines.diagnostics import Diagnostic
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.file_checks import check_listing, check_tokenizer, needed_files
from trtllm_truss.engines.kinds import find_engine, inspect_files
from trtllm_truss.text.tokenizer_selection import select_tokenizer


class EngineRepository:
    """A repository with an engine, listed on construction.

    Raises:
        ArtifactError: from every method, with the repository's name.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._sizes = source.listing().sizes
        with named(source.name):
            _, self._placement = find_engine(self._sizes)

    def describe(self) -> Engine:
        """Read small files only; a GGUF file has none, and stays undescribed."""
        with named(self.source.name):
            engine = inspect_files(self._sizes, self.source.read)
            check_listing(engine, self.source.listing(), is_part=self.source.is_mounted)
        return engine

    def engine_paths(
        self,
        engine: Engine,
        *,
        with_code: bool = False,
        ranks: Collection[int] | None = None,
    ) -> list[str]:
        """Return the files to serve, given the result of `describe`.

        Args:
            engine: its description.
            with_code: include the Python files of a checkpoint (`trust_remote_code`).
            ranks: those of this host; None for all.
        """
        return needed_files(self._sizes, engine, with_code=with_code, ranks=ranks)

    def tokenizer_paths(self, *, trust_remote_code: bool) -> list[str]:
        """Return the tokenizer's files in this repository."""
        sizes = self._placement.tokenizer_sizes(self._sizes)
        with named(self.source.name):
            names = select_tokenizer(sizes, trust_remote_code=trust_remote_code)
        return self._placement.tokenizer_paths(names)


class TokenizerRepository:
    """A repository with a tokenizer; construction sends no request.

    Args:
        source: the repository.
        name: `tokenizer_repository`.
        trust_remote_code: accept tokenizers that contain Python code.

    Raises:
        ArtifactError: from every method, with the repository's name.
    """

    def __init__(self, source: Source, name: str, *, trust_remote_code: bool) -> None:
        self.source = source
        self._repository = name
        self._trust_remote_code = trust_remote_code

    def examine(self, engine: Engine) -> list[Diagnostic]:
        """Check access, files and disk space before the engine is downloaded.

        Args:
            engine: the engine to compare with.
        """
        self.source.check_room(self.paths())
        return list(check_tokenizer(engine, self._repository, self.source.listing().commit))

    def fetch(self) -> Path:
        """Download the tokenizer and return its folder."""
        return self.source.fetch(self.paths())

    def paths(self) -> list[str]:
        """Return the tokenizer's files."""
        sizes = self.source.listing().sizes
        with named(self.source.name):
            return select_tokenizer(sizes, trust_remote_code=self._trust_remote_code)
