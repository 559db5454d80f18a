"""Select and download the needed files of the engine and tokenizer repositories.

An engine's files are compared with its manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trtllm_truss.artifacts.listing import Listing, Source, has_sha256, named, select_tokenizer
from trtllm_truss.engines.diagnostics import Diagnostic, shortlist, warning
from trtllm_truss.engines.engine import Engine, Placement
from trtllm_truss.engines.engine_files import CONFIG_FILE
from trtllm_truss.engines.kinds import find_engine, inspect_files
from trtllm_truss.engines.manifest import MANIFEST_FILE, Manifest
from trtllm_truss.errors import ArtifactError


def needed_files(
    sizes: Mapping[str, int],
    engine: Engine,
    *,
    with_code: bool = False,
    ranks: Collection[int] | None = None,
) -> list[str]:
    """List the files that serving needs, by path below the repository.

    Args:
        sizes: size in bytes of every file, by path below the repository.
        with_code: include the Python files of a checkpoint (`trust_remote_code`).
        ranks: ranks on this host; None for all.
    """
    here, placement = engine.placement.sizes(sizes), engine.placement
    names = engine.needed_files(here, with_code=with_code, ranks=ranks)
    wanted = (names | {CONFIG_FILE, MANIFEST_FILE}) & here.keys()
    return [*placement.paths(sorted(wanted)), *placement.marks]


def check_listing(engine: Engine, listing: Listing, *, is_part: bool = False) -> None:
    """Compare a manifest with the engine's `config.json` and the listing.

    Args:
        listing: the files in its repository.
        is_part: the listing contains only the files needed for serving.

    Raises:
        ArtifactError: the manifest belongs to another build.
    """
    manifest = engine.manifest
    if manifest is None:
        return
    engine.check_manifest(manifest)
    listed = {file.path: file for file in listing.files}
    recorded = _recorded(manifest, engine.placement)
    sizes = {**{path: size for path, (size, _) in recorded.items()}, **listing.sizes}
    needed = needed_files(sizes, engine) if is_part else recorded
    wrong = []
    for path, record in recorded.items():
        file = listed.get(path)
        if file is None:
            if path not in needed:
                continue
            raise ArtifactError(
                f"{MANIFEST_FILE} lists {path}, which is missing; upload every file of the build."
            )
        digest = file.digest
        other = digest is not None and digest.algorithm == "sha256" and digest.value != record[1]
        if file.size != record[0] or other:
            wrong.append(path)
    _refuse(wrong)


def check_tokenizer(engine: Engine, repository: str, commit: str) -> Iterator[Diagnostic]:
    """Yield a warning if the manifest records another commit of the same tokenizer.

    Args:
        commit: the commit in use; empty if unknown.
    """
    recorded = None if engine.manifest is None else engine.manifest.tokenizer
    if recorded is None or recorded.repository != repository:
        return
    if commit and recorded.revision not in (None, commit):
        yield warning(
            "tokenizer_revision_differs",
            f"the engine was built for {repository} at {recorded.revision}, but its tokenizer "
            f"is fetched at {commit}; set tokenizer_revision to the former if they differ.",
        )


def check_files(engine: Engine, repository: Path) -> None:
    """Compare local files with the manifest.

    A file is read again only after its size or time has changed.

    Raises:
        ArtifactError: a file differs from the manifest.
    """
    recorded = recorded_files(engine, repository)
    with ThreadPoolExecutor(8) as threads:
        fits = threads.map(has_sha256, recorded, recorded.values())
        _refuse(
            [
                path.relative_to(repository).as_posix()
                for path, fit in zip(recorded, fits, strict=True)
                if not fit
            ]
        )


def recorded_files(engine: Engine, repository: Path) -> dict[Path, str]:
    """Return the SHA-256 of the local files in the manifest."""
    if engine.manifest is None:
        return {}
    recorded = _recorded(engine.manifest, engine.placement)
    places = {repository / path: sha256 for path, (_, sha256) in recorded.items()}
    return {place: sha256 for place, sha256 in places.items() if place.is_file()}


def _recorded(manifest: Manifest, placement: Placement) -> dict[str, tuple[int, str]]:
    return {
        path: (record.size, record.sha256)
        for path, record in zip(
            placement.paths(manifest.files), manifest.files.values(), strict=True
        )
    }


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise ArtifactError(
            f"{shortlist(wrong)} in the engine repository differs from {MANIFEST_FILE}; "
            "upload all files of one build."
        )


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
        """Read small files only; a GGUF file has none and stays undescribed."""
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
        """Return the files needed for serving, given the result of `describe`.

        Args:
            with_code: include the Python files of a checkpoint (`trust_remote_code`).
            ranks: ranks on this host; None for all.
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
        trust_remote_code: accept tokenizers that contain Python code.

    Raises:
        ArtifactError: from every method, with the repository's name.
    """

    def __init__(self, source: Source, name: str, *, trust_remote_code: bool) -> None:
        self.source = source
        self._repository = name
        self._trust_remote_code = trust_remote_code

    def examine(self, engine: Engine) -> list[Diagnostic]:
        """Check access, files and disk space before the engine is downloaded."""
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
