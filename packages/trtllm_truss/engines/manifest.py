"""``engine.manifest.json``: the record of a build, read before its engine is served.

``config.json`` records neither the GPU of the build nor the contents of the files; this project's
builder writes both next to it::

    {"schema": 1,
     "tensorrt_llm_version": "1.0.0",
     "gpu": {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"},
     "world_size": 2,
     "build_key": "5f0c…",
     "build_options": {"max_batch_size": 64},
     "checkpoint": {"repository": "org/model", "revision": "<commit>"},
     "tokenizer": {"repository": "org/model", "revision": "<commit>"},
     "files": {"rank0.engine": {"bytes": 8030261248, "sha256": "<64 hex digits>"}}}

Every key is optional; the ones present are compared with the files and the GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from trtllm_truss.artifacts.listing import sha256_of, write_atomically
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import JsonObject, Size, Text, json_object, parse_json, read_model

MANIFEST_FILE = "engine.manifest.json"
SCHEMA = 1
_MAX_BYTES = 2**53  # the largest integer that every JSON reader preserves
_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9])")


def _parse_capability(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _CAPABILITY.fullmatch(value)
    if match is None:
        raise ValueError("it must be two numbers such as 9.0")
    return int(match[1]), int(match[2])


def _dotted(capability: ComputeCapability) -> str:
    return f"{capability[0]}.{capability[1]}"


class TargetGpu(JsonObject):
    """The GPU that an engine was built on.

    TensorRT refuses an engine of another compute capability only after loading it.

    Attributes:
        name: the GPU's name, as ``nvidia-smi`` prints it.
        compute_capability: major and minor; the serving GPU must have the same.
    """

    name: Text
    compute_capability: Annotated[
        ComputeCapability,
        BeforeValidator(_parse_capability),
        PlainSerializer(_dotted),
    ]

    @property
    def dotted_capability(self) -> str:
        """The compute capability as NVIDIA writes it, such as ``9.0``."""
        return _dotted(self.compute_capability)


class Origin(JsonObject):
    """A repository and its revision.

    Attributes:
        repository: as in config.yaml, mostly `org/name` on Hugging Face.
        revision: the commit, if the repository has any.
    """

    repository: Text
    revision: Text | None = None


class FileRecord(JsonObject):
    """One file as the build left it.

    Attributes:
        size: bytes.
        sha256: hash of its contents, 64 lower-case hex digits.
    """

    size: int = Field(alias="bytes", ge=0, le=_MAX_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(JsonObject):
    """The record of a build; None and empty mean not recorded.

    Attributes:
        tensorrt_llm_version: version of the builder; None for a CPU engine.
        gpu: the GPU it was built on; None for a CPU engine.
        world_size: ranks, one engine file each.
        build_key: hash of all inputs of the build; equal keys mean equal engines.
        build_options: the options as the build resolved them.
        checkpoint: the weights it was built from.
        files: all files of the engine repository except the manifest, by path.
    """

    tensorrt_llm_version: Text | None = None
    gpu: TargetGpu | None = None
    world_size: Size | None = None
    build_key: Text | None = None
    build_options: Mapping[str, Any] = Field(default_factory=dict)
    checkpoint: Origin | None = None
    tokenizer: Origin | None = None
    files: dict[str, FileRecord] = Field(default_factory=dict)


class _Schema(JsonObject):
    number: Size = Field(SCHEMA, alias="schema")


def record_files(folder: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """Return sizes and hashes of files for `Manifest.files`; reads every byte.

    Args:
        names: paths below the folder, ``/`` between folders.
    """
    return {
        name: FileRecord(size=(folder / name).stat().st_size, sha256=sha256_of(folder / name))
        for name in sorted(names)
    }


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write `engine.manifest.json` atomically.

    Returns:
        The path of the file.
    """
    values = manifest.model_dump(by_alias=True, exclude_defaults=True)
    text = json.dumps({"schema": SCHEMA, **values}, indent=2, ensure_ascii=False) + "\n"
    return write_atomically(folder / MANIFEST_FILE, text.encode())


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of an engine folder; None if it has none.

    Raises:
        ArtifactError: the file is not a valid manifest.
    """
    try:
        content = (folder / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        return None
    return parse_manifest(parse_json(MANIFEST_FILE, content))


def parse_manifest(content: object) -> Manifest:
    """Validate a parsed `engine.manifest.json`.

    Raises:
        ArtifactError: a value is of the wrong type, or the schema is newer than this project.
    """
    values = json_object(MANIFEST_FILE, content)
    schema = read_model(_Schema, MANIFEST_FILE, values).number
    if schema > SCHEMA:
        raise ArtifactError(
            f"{MANIFEST_FILE} has schema {schema}, and this release reads up to {SCHEMA}; use a "
            "newer release of trtllm-truss."
        )
    return read_model(Manifest, MANIFEST_FILE, values)
