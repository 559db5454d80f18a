"""Inspection of an engine folder or of its listing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.json_files import parse_json
from trtllm_truss.engines.kinds import find_engine
from trtllm_truss.engines.manifest import MANIFEST_FILE, parse_manifest, read_manifest
from trtllm_truss.errors import ArtifactError


def inspect_engine(repository: Path) -> Engine:
    """Inspect an engine on this machine.

    Args:
        repository: its folder, flat or in LMI's layout.

    Raises:
        ArtifactError: the folder has no engine, or its description cannot be read.
    """
    try:
        sizes = _sizes(repository)
        kind, placement = find_engine(sizes)
        folder = repository / placement.folder
        described = kind.describe_folder(folder, placement.sizes(sizes))
        manifest = read_manifest(folder)
    except ArtifactError as error:
        raise ArtifactError(f"engine_repository {str(repository)!r}: {error.message}") from error
    except OSError as error:
        raise ArtifactError(
            f"engine_repository {str(repository)!r} cannot be read ({error.strerror}); check the "
            "path and its permissions."
        ) from error
    return replace(
        described,
        manifest=manifest,
        placement=placement,
        folder=folder,
        tokenizer_folder=repository / placement.tokenizer_folder,
    )


def inspect_files(sizes: Mapping[str, int], read: Callable[[str], bytes]) -> Engine:
    """Inspect an engine by its listing and a few small files, before its weights are fetched.

    Args:
        sizes: bytes of every file by its path below the repository.
        read: returns the contents of one of them.

    Returns:
        Its description, which may lack the limits (`Engine.is_described`) and then the manifest.

    Raises:
        ArtifactError: the files describe no engine.
    """
    kind, placement = find_engine(sizes)
    here = placement.sizes(sizes)
    paths = dict(zip(here, placement.paths(here), strict=True))
    contents = {
        name: parse_json(name, read(paths[name]))
        for name in kind.described_by(here)
        if name in here
    }
    described = kind.describe(here, contents)
    if described.is_described and MANIFEST_FILE in here:
        recorded = parse_json(MANIFEST_FILE, read(paths[MANIFEST_FILE]))
        described = replace(described, manifest=parse_manifest(recorded))
    return replace(described, placement=placement)


def _sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        raise ArtifactError("the folder does not exist; check engine_repository.")
    files = (file for depth in range(4) for file in folder.glob("*/" * depth + "*"))
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size for file in files if file.is_file()
    }
