"""Hugging Face repositories through `huggingface_hub`, the only module that talks to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_truss.errors import ArtifactError


def fetch_from_hub(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> Path:
    """Downloads a repository into Hugging Face's own cache and returns the snapshot's folder.

    `HF_HOME` and `HF_ENDPOINT` are honoured. Files that are there already are not fetched again.

    Raises:
        ArtifactError: the repository or revision does not exist, the token lacks rights, or the
            download failed.
    """
    from huggingface_hub import snapshot_download

    with _problems_of(repository, revision, setting, token):
        return Path(snapshot_download(repository, revision=revision, token=token or False))


def describe_on_hub(
    repository: str, revision: str | None, *, setting: str, token: str | None
) -> tuple[object, list[tuple[str, int]]]:
    """A repository's `config.json` and the names and bytes of its files, and nothing else of it.

    Raises:
        ArtifactError: as `fetch_from_hub`, or `config.json` is missing or not JSON.
    """
    from huggingface_hub import HfApi, hf_hub_download

    with _problems_of(repository, revision, setting, token):
        info = HfApi(token=token or False).model_info(
            repository, revision=revision, files_metadata=True
        )
        files = [(file.rfilename, file.size or 0) for file in info.siblings or ()]
        if "config.json" not in dict(files):
            raise ArtifactError(f"{setting} {repository!r} has no config.json.")
        config = hf_hub_download(repository, "config.json", revision=revision, token=token or False)
    try:
        return json.loads(Path(config).read_bytes()), files
    except ValueError as error:
        raise ArtifactError(
            f"config.json of {setting} {repository!r} is not JSON: {error}."
        ) from None


@contextmanager
def _problems_of(
    repository: str, revision: str | None, setting: str, token: str | None
) -> Iterator[None]:
    """Turns what huggingface_hub raises into one sentence with the remedy."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
        return
    except ArtifactError:
        raise
    except GatedRepoError:
        problem = "is gated and the token's owner has no access; ask for it on the model's page"
    except RevisionNotFoundError:
        problem = f"has no revision {revision!r}; check {setting.replace('repository', 'revision')}"
    except RepositoryNotFoundError:
        problem = (
            "does not exist or is private; check the name, and that the secret hf_access_token "
            + ("has rights to read it" if token else "is set (it is not)")
        )
    except LocalEntryNotFoundError:
        problem = "is not in the local cache and the Hub cannot be reached; check the network"
    except Exception as error:  # noqa: BLE001 - its HTTP library differs from release to release
        problem = f"could not be read ({type(error).__name__}); check the network, try again later"
    raise ArtifactError(f"{setting} {repository!r} {problem}.")
