"""``engine.manifest.json``: what a build says of the engine it made, read before it is served.

``config.json`` names neither the GPU that an engine was built on nor the contents of its files;
the builder of this project writes both beside it::

    {"schema": 1,
     "tensorrt_llm_version": "1.0.0",
     "gpu": {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"},
     "world_size": 2,
     "build_key": "5f0c…",
     "build_options": {"max_batch_size": 64},
     "checkpoint": {"repository": "org/model", "revision": "<commit>"},
     "tokenizer": {"repository": "org/model", "revision": "<commit>"},
     "files": {"rank0.engine": {"bytes": 8030261248, "sha256": "<64 hex digits>"}}}

Every key may be absent; what is there is compared with what is found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.checksums import sha256_of, write_atomically
from trtllm_truss.engines.json_fields import Fields
from trtllm_truss.engines.target_gpu import MANIFEST_FILE, TargetGpu, parse_target_gpu
from trtllm_truss.errors import ArtifactError

SCHEMA = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 2**53  # the largest whole number that every JSON reader keeps


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something came from.

    Attributes:
        repository: as in config.yaml, `org/name` on Hugging Face for the most part.
        revision: the commit, where the repository has any.
    """

    repository: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file as the build left it.

    Attributes:
        size: bytes.
        sha256: of its contents, 64 lower-case hex digits.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a build says of its engine; None and empty are "not recorded".

    Attributes:
        tensorrt_llm_version: what built it; None for an engine of the CPU.
        gpu: the GPU it was built on; None for an engine of the CPU.
        world_size: ranks, one engine file each.
        build_key: hash of everything that went into the build; equal keys, equal engines.
        build_options: the options as the build resolved them.
        checkpoint: the weights that it was built from.
        tokenizer: the tokenizer that belongs to it.
        files: every file of the engine repository but the manifest, by its path.
    """

    tensorrt_llm_version: str | None = None
    gpu: TargetGpu | None = None
    world_size: int | None = None
    build_key: str | None = None
    build_options: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Origin | None = None
    tokenizer: Origin | None = None
    files: Mapping[str, FileRecord] = field(default_factory=dict)


def record_files(folder: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """Sizes and hashes of files for `Manifest.files`; reads every byte.

    Args:
        folder: the engine folder.
        names: paths below it, ``/`` between folders.
    """
    return {
        name: FileRecord((folder / name).stat().st_size, sha256_of(folder / name))
        for name in sorted(names)
    }


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Writes `engine.manifest.json`, whole or not at all.

    Returns:
        The file.
    """
    gpu = manifest.gpu
    content = {
        "schema": SCHEMA,
        "tensorrt_llm_version": manifest.tensorrt_llm_version,
        "gpu": gpu and {"name": gpu.name, "compute_capability": gpu.dotted_capability},
        "world_size": manifest.world_size,
        "build_key": manifest.build_key,
        "build_options": dict(manifest.build_options),
        "checkpoint": _origin_object(manifest.checkpoint),
        "tokenizer": _origin_object(manifest.tokenizer),
        "files": {
            name: {"bytes": record.size, "sha256": record.sha256}
            for name, record in manifest.files.items()
        },
    }
    known = {key: value for key, value in content.items() if value not in (None, {})}
    text = json.dumps(known, indent=2, ensure_ascii=False) + "\n"
    return write_atomically(folder / MANIFEST_FILE, text.encode())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of an engine folder; None if it has none.

    Raises:
        ArtifactError: it is there and cannot be read.
    """
    try:
        content = json.loads((folder / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{MANIFEST_FILE} is not valid JSON ({error}); fetch it again."
        ) from None
    return parse_manifest(content)


def parse_manifest(content: object) -> Manifest:
    """A parsed `engine.manifest.json`.

    Raises:
        ArtifactError: a value is of the wrong type, or the schema is newer than this project.
    """
    if not isinstance(content, Mapping):
        raise ArtifactError(
            f"{MANIFEST_FILE} is not a JSON object; take it from the build's output."
        )
    fields = Fields(MANIFEST_FILE, content)
    schema = fields.integer("schema", SCHEMA)
    if schema > SCHEMA:
        raise ArtifactError(
            f"{MANIFEST_FILE} has schema {schema}, and this release reads up to {SCHEMA}; use a "
            "newer release of trtllm-truss."
        )
    return Manifest(
        tensorrt_llm_version=fields.text("tensorrt_llm_version", None),
        gpu=parse_target_gpu(content),
        world_size=fields.integer("world_size", None),
        build_key=fields.text("build_key", None),
        build_options=fields.mapping("build_options"),
        checkpoint=_origin(fields, "checkpoint"),
        tokenizer=_origin(fields, "tokenizer"),
        files={
            name: _file_record(fields.section("files").section(name), name)
            for name in fields.mapping("files")
        },
    )


def _origin(fields: Fields, name: str) -> Origin | None:
    if name not in fields:
        return None
    section = fields.section(name)
    return Origin(section.text("repository"), section.text("revision", None))


def _origin_object(origin: Origin | None) -> dict[str, str] | None:
    if origin is None:
        return None
    revision = {} if origin.revision is None else {"revision": origin.revision}
    return {"repository": origin.repository, **revision}


def _file_record(fields: Fields, name: str) -> FileRecord:
    sha256 = fields.text("sha256")
    if not _SHA256.fullmatch(sha256):
        raise ArtifactError(
            f"{MANIFEST_FILE}: the sha256 of {name} is not 64 lower-case hex digits; take the file "
            "from the build's output."
        )
    return FileRecord(fields.integer("bytes", least=0, most=_MOST_BYTES), sha256)
