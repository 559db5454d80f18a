"""Resolution of repository names of config.yaml to a `Source`."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.artifacts.hub import open_on_hub
from trtllm_truss.artifacts.listing import Source
from trtllm_truss.artifacts.local import PACKAGE, open_folder, open_package
from trtllm_truss.artifacts.s3 import S3, open_on_s3
from trtllm_truss.errors import ArtifactError, SettingsError

_FOLDERS = ("/", "./", "../", "~")


def open_repository(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> Source:
    """Open a repository by its name, without a remote request.

    Args:
        repository: `org/name` on Hugging Face, `s3://bucket/prefix`, a local folder, or
            `package://NAME`.
        revision: branch, tag or commit; on Hugging Face only.
        setting: its key in config.yaml, for messages.
        token: the Hugging Face access token; None if not declared, empty if declared without a
            value.

    Raises:
        ArtifactError: the folder or package does not exist, or the name is invalid.
        SettingsError: the repository cannot have a revision.
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
    return is_on_hub(repository) or repository.startswith(S3)


def is_on_hub(repository: str) -> bool:
    elsewhere = "://" in repository or repository.startswith(_FOLDERS)
    return repository.count("/") == 1 and not elsewhere
