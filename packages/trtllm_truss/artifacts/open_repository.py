"""One repository name in config.yaml becomes a `Source`."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.artifacts.hub import open_on_hub
from trtllm_truss.artifacts.local import PACKAGE, open_folder, open_package
from trtllm_truss.artifacts.s3 import S3, open_on_s3
from trtllm_truss.artifacts.source import Source
from trtllm_truss.errors import ArtifactError, SettingsError

_FOLDERS = ("/", "./", "../", "~")


def open_repository(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> Source:
    """A repository by its name; nothing remote is asked yet.

    Args:
        repository: `org/name` on Hugging Face, `s3://bucket/prefix`, a local folder, or
            `package://NAME`.
        revision: branch, tag or commit; only Hugging Face has any.
        setting: the key in config.yaml that named it, for messages.
        token: the Hugging Face access token; None if there is none, empty if it has no value.

    Raises:
        ArtifactError: there is no such folder or package, or the name means nothing.
        SettingsError: a revision is given for what has none.
    """
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
    raise ArtifactError(
        f"{setting} is {repository!r}; it must be `org/name` on Hugging Face, `s3://bucket/prefix`,"
        " a local folder that begins with `/`, `./` or `~`, or `package://NAME`."
    )


def is_remote(repository: str) -> bool:
    """Whether a repository's files must be fetched before they can be read."""
    return is_on_hub(repository) or repository.startswith(S3)


def is_on_hub(repository: str) -> bool:
    """Whether a repository name means one on Hugging Face."""
    elsewhere = "://" in repository or repository.startswith(_FOLDERS)
    return repository.count("/") == 1 and not elsewhere
