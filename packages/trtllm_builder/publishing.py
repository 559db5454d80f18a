"""Upload a finished engine to Hugging Face or S3, and find it there on later starts.

The model card contains the settings to serve it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trtllm_truss.artifacts.hub import HubErrors, keep_urls_out_of_logs, unsafe_endpoint
from trtllm_truss.artifacts.open_repository import is_on_hub, open_repository
from trtllm_truss.artifacts.retrying import Interrupted, Unreachable, retrying
from trtllm_truss.engines.manifest import MANIFEST_FILE, Manifest, parse_manifest, read_manifest
from trtllm_truss.errors import ArtifactError, BuildError

CARD_FILE = "README.md"

_CARD = """\
---
{header}---

# {title}

An engine for [Triton Inference Server](https://github.com/triton-inference-server), built by
trtllm-truss from {checkpoint}. It is not a checkpoint: it runs only on what this table lists.

| | |
|---|---|
{rows}

Serve it with this block in a Truss's `config.yaml`:

```yaml
{settings}```

Build options:

```json
{options}
```
"""


def model_card(manifest: Manifest, repository: str) -> str:
    """Return the text of ``README.md`` for an engine in `repository`."""
    gpu = manifest.gpu
    origin = manifest.checkpoint
    checkpoint = "an unnamed checkpoint" if origin is None else f"`{origin.repository}`"
    if origin is not None and origin.revision:
        checkpoint += f" at `{origin.revision}`"
    facts = {
        "TensorRT-LLM": manifest.tensorrt_llm_version or "none: runs on the CPU",
        "GPU": f"{gpu.name}, compute capability {gpu.dotted_capability}" if gpu else None,
        "Ranks (GPUs)": manifest.world_size if manifest.tensorrt_llm_version else None,
        "Build key": manifest.build_key,
    }
    header: dict[str, Any] = {"tags": ["trtllm-truss"]}
    if origin is not None and origin.revision:  # only repositories on the Hub have one
        header["base_model"] = origin.repository
    return _CARD.format(
        header=yaml.safe_dump(header),
        title=repository.rstrip("/").rsplit("/", 1)[-1],
        checkpoint=checkpoint,
        rows="\n".join(f"| {name} | {value} |" for name, value in facts.items() if value),
        settings=settings_block(manifest, repository),
        options=json.dumps(dict(manifest.build_options), indent=2, ensure_ascii=False),
    )


def settings_block(manifest: Manifest, repository: str, revision: str | None = None) -> str:
    """Return the YAML that serves an engine, to paste into ``config.yaml``."""
    options: Mapping[str, Any] = manifest.build_options
    metadata = {
        "tensor_parallelism": options.get("tensor_parallelism", 1),
        "pipeline_parallelism": options.get("pipeline_parallelism", 1),
        "engine_repository": repository,
    }
    if revision is not None:
        metadata["engine_revision"] = revision
    return yaml.safe_dump({"model_metadata": metadata}, sort_keys=False)


logger = logging.getLogger(__name__)

_SETTING = "build.publish_to"
_S3 = "s3://"
_KEPT_FILES = frozenset({".gitattributes"})
_FORBIDDEN = frozenset({401, 403})


def find_published(destination: str, key: str, token: str | None) -> Path | None:
    """Fetch a build's engine from its destination; return None if it is not there.

    Raises:
        Unreachable: the destination does not respond.
        ArtifactError: the published engine cannot be fetched.
    """
    source = open_repository(destination, None, setting=_SETTING, token=token)
    try:
        sizes = source.listing().sizes
    except Unreachable:
        raise
    except ArtifactError as error:
        logger.info("not published yet: %s", error.message)
        return None
    if MANIFEST_FILE not in sizes:
        return None
    try:
        manifest = parse_manifest(json.loads(source.read(MANIFEST_FILE)))
    except ValueError:
        return None
    return source.fetch(sizes) if manifest.build_key == key else None


def publish(engine: Path, destination: str, token: str | None) -> str | None:
    """Upload an engine repository with a model card.

    Args:
        engine: the folder, with its manifest.
        destination: `org/name` on Hugging Face, created as private if new, or
            `s3://bucket/prefix`.
        token: the Hugging Face access token, with write access.

    Returns:
        The commit on Hugging Face; None for S3.

    Raises:
        BuildError: the folder has no manifest, or it cannot be uploaded.
    """
    manifest = read_manifest(engine)
    if manifest is None:
        raise BuildError(
            f"{engine} has no {MANIFEST_FILE}; publish an engine that `trtllm-truss build` made."
        )
    if is_on_hub(destination):
        return _to_hub(engine, manifest, destination, token)
    if destination.startswith(_S3):
        _to_s3(engine, manifest, destination)
        return None
    raise BuildError(
        f"{_SETTING} is {destination!r}; it must be `org/name` on Hugging Face or "
        "`s3://bucket/prefix`."
    )


def _to_hub(engine: Path, manifest: Manifest, repository: str, token: str | None) -> str:
    if not token:
        raise BuildError(
            f"publishing to {repository} needs the secret hf_access_token with write access."
        )
    if endpoint := unsafe_endpoint():
        raise BuildError(
            f"publishing to {repository} would send the secret hf_access_token to {endpoint} "
            "unencrypted; set HF_ENDPOINT to an https URL."
        )
    keep_urls_out_of_logs()
    name = f"{_SETTING} {repository!r}"

    def attempt() -> str:
        with _hub_words(name, token):
            return _commit(engine, manifest, repository, token)

    try:
        return retrying(name, attempt)  # files that are uploaded already are skipped
    except ArtifactError as error:
        raise BuildError(error.message) from error


def _commit(engine: Path, manifest: Manifest, repository: str, token: str) -> str:
    """Upload in one commit, which also deletes files of an earlier engine."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi(token=token)
    api.create_repo(repository, private=True, exist_ok=True)
    old = set(api.list_repo_files(repository)) - _KEPT_FILES
    files: dict[str, Path | bytes] = {file.name: file for file in _files(engine)}
    files[CARD_FILE] = model_card(manifest, repository).encode()
    result = api.create_commit(
        repository,
        [
            *(CommitOperationAdd(name, content) for name, content in files.items()),
            *(CommitOperationDelete(name) for name in sorted(old - files.keys())),
        ],
        commit_message=f"Engine {(manifest.build_key or '')[:12]}",
    )
    return str(result.oid)


@contextlib.contextmanager
def _hub_words(name: str, token: str) -> Iterator[None]:
    """Translate the upload errors of huggingface_hub."""
    from huggingface_hub.errors import HfHubHTTPError

    with HubErrors(name, None, token).translated():
        try:
            yield
        except HfHubHTTPError as error:
            if error.response is not None and error.response.status_code in _FORBIDDEN:
                raise BuildError(
                    f"{name}: the token in the secret hf_access_token may not write there; give "
                    "it write access, or name another repository."
                ) from None
            raise
        except RuntimeError:  # any failure of a large file; its text contains signed URLs
            raise Interrupted("failed to upload a large file", "publish it again") from None


def _to_s3(engine: Path, manifest: Manifest, url: str) -> None:
    """Upload the manifest last; an engine without one does not count as published."""
    try:
        import boto3
        from botocore import exceptions
    except ImportError as error:
        raise BuildError(
            f"publishing to {url} needs boto3; add `boto3` to requirements.txt, or install "
            "trtllm-truss[s3]."
        ) from error
    bucket, _, prefix = url.removeprefix(_S3).partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    try:
        client = boto3.client("s3")
        card = model_card(manifest, url).encode()
        client.put_object(Bucket=bucket, Key=f"{prefix}{CARD_FILE}", Body=card)
        for file in _files(engine):
            client.upload_file(str(file), bucket, f"{prefix}{file.name}")
    except (exceptions.BotoCoreError, exceptions.ClientError, boto3.exceptions.Boto3Error) as error:
        raise BuildError(
            f"{_SETTING} {url!r} cannot be written ({type(error).__name__}); check the bucket and "
            "the permissions of the AWS credentials."
        ) from None


def _files(engine: Path) -> list[Path]:
    files = [file for file in sorted(engine.iterdir()) if file.is_file()]
    return sorted(files, key=lambda file: file.name == MANIFEST_FILE)
