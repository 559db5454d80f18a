"""Hugging Face repositories through `huggingface_hub`, the only module that talks to it."""

from __future__ import annotations

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
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repository, revision=revision, token=token or False))
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
    except (HfHubHTTPError, OSError) as error:
        problem = f"could not be downloaded ({type(error).__name__}); try again later"
    raise ArtifactError(f"{setting} {repository!r} {problem}.")
