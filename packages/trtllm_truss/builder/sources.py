"""The checkpoint: looked at first, fetched when nothing speaks against the build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.artifacts.fetch import open_repository
from trtllm_truss.artifacts.source import Source
from trtllm_truss.builder.checkpoint import CONFIG_FILE, Checkpoint, parse_checkpoint
from trtllm_truss.errors import ArtifactError
from trtllm_truss.settings.build import Build

_SETTING = "build.checkpoint_repository"
_TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_CODE = ".py"
_WEIGHTS = ".safetensors"
_OLD_WEIGHTS = ".bin"


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """A checkpoint of which only ``config.json`` was read.

    Attributes:
        source: the repository.
        checkpoint: what its ``config.json`` says.
        revision: names exactly these contents.
        commit: the same on Hugging Face; None elsewhere.
    """

    source: Source
    checkpoint: Checkpoint
    revision: str
    commit: str | None

    def fetch(self, *, with_code: bool) -> Path:
        """Downloads what a build reads.

        Args:
            with_code: its Python files as well.

        Raises:
            ArtifactError: the repository holds no weights, or cannot be fetched.
        """
        return self.source.fetch(_needed(self.source.listing().sizes, with_code=with_code))


def find_checkpoint(build: Build, token: str | None) -> CheckpointSource:
    """Looks at the checkpoint that the settings name.

    Raises:
        ArtifactError: there is none, or its ``config.json`` cannot be read.
    """
    source = open_repository(
        build.checkpoint_repository, build.checkpoint_revision, setting=_SETTING, token=token
    )
    listing = source.listing()
    if CONFIG_FILE not in listing.sizes:
        raise ArtifactError(
            f"{source.name} has no {CONFIG_FILE}; name a checkpoint as Hugging Face has it."
        )
    try:
        config = json.loads(source.read(CONFIG_FILE))
    except ValueError as error:
        raise ArtifactError(f"{CONFIG_FILE} of {source.name} is not JSON ({error}).") from None
    checkpoint = parse_checkpoint(config)
    if listing.commit:
        return CheckpointSource(source, checkpoint, listing.commit, listing.commit)
    return CheckpointSource(source, checkpoint, _state_of(source.fetch(listing.sizes)), None)


def changed_copy(folder: Path, changes: Mapping[str, Any], destination: Path) -> Path:
    """A folder that shows a checkpoint with other values in its ``config.json``.

    Args:
        folder: the checkpoint; it stays as it is.
        changes: values by key.
        destination: made anew.
    """
    destination.mkdir()
    for file in folder.iterdir():
        (destination / file.name).symlink_to(file.resolve())
    config = json.loads((folder / CONFIG_FILE).read_bytes()) | changes
    (destination / CONFIG_FILE).unlink()
    (destination / CONFIG_FILE).write_text(json.dumps(config, indent=2), encoding="utf-8")
    return destination


def _needed(paths: Iterable[str], *, with_code: bool) -> list[str]:
    """What lies flat in the repository: settings, tokenizer, code, and one set of weights."""
    code = (_CODE,) if with_code else ()
    flat = [path for path in paths if "/" not in path]
    suffix = next(
        (end for end in (_WEIGHTS, _OLD_WEIGHTS) if any(path.endswith(end) for path in flat)), None
    )
    if suffix is None:
        raise ArtifactError(
            f"the checkpoint holds no {_WEIGHTS} and no {_OLD_WEIGHTS} files; name the repository "
            f"of the model's weights in {_SETTING}."
        )
    return [path for path in flat if path.endswith((*_TEXTS, *code, suffix))]


def _state_of(folder: Path) -> str:
    """A hash of a folder's files by name, size and time: reading all weights would take minutes."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    states = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()
