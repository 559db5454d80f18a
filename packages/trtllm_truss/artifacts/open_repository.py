"""Resolution of repository names of config.yaml to a `Source`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from trtllm_truss.artifacts.hub import open_on_hub
from trtllm_truss.artifacts.listing import Source
from trtllm_truss.artifacts.local import (
    PACKAGE,
    is_delivered,
    open_folder,
    open_mount,
    open_package,
)
from trtllm_truss.artifacts.s3 import S3, open_on_s3
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.settings.model import MOUNT_ONLY, VOLUME, Mount

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
        mounts: what the platform may have delivered; a repository among it is not downloaded.

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


def _open_mounted(
    repository: str, revision: str | None, setting: str, mounts: Sequence[Mount]
) -> Source | None:
    """Open a repository that the platform delivered; None if it did not."""
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
    """Return the warning about a mount that is left unused."""
    key = setting.replace("repository", "revision")
    return (
        f"config.yaml: weights delivers {mount.source}, but model_metadata.{key} is {revision!r}, "
        "so the mount is not used; name one revision in both."
    )


def is_remote(repository: str) -> bool:
    return is_on_hub(repository) or repository.startswith(S3)


def is_on_hub(repository: str) -> bool:
    elsewhere = "://" in repository or repository.startswith((*_FOLDERS, VOLUME))
    return repository.count("/") == 1 and not elsewhere
