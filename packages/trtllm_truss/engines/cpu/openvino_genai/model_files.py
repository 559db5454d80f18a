"""Files of an engine folder for the CPU."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.engines.gguf import read_metadata
from trtllm_truss.errors import ArtifactError


class ModelFilesError(ValueError):
    """The engine folder does not hold a loadable model."""


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        path: a GGUF file, or a folder with an OpenVINO IR.
        context_length: maximum of tokens, prompt and answer together.
        vocab_size: number of token ids.
    """

    path: Path
    context_length: int
    vocab_size: int


def find_model(folder: Path) -> ModelFiles:
    """Find the model in an engine folder.

    Raises:
        ModelFilesError: there is not exactly one model, or its metadata is incomplete.
    """
    if (folder / "openvino_model.xml").is_file():
        return _openvino_ir(folder)
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise ModelFilesError(
            f"{folder} holds no openvino_model.xml and {len(found)} .gguf files; a CPU engine is "
            "one or the other."
        )
    return _gguf(found[0])


@contextmanager
def loadable(path: Path) -> Iterator[Path]:
    """Provide a model as OpenVINO GenAI can load it; remove a temporary copy on exit.

    Version 2026.4 opens a GGUF file for reading and writing, so a file that this user cannot write
    is copied: one that root installed, or one on a read-only volume.
    """
    if path.is_dir() or os.access(path, os.W_OK):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        shutil.copyfile(path, copy)
        yield copy


def _openvino_ir(folder: Path) -> ModelFiles:
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return ModelFiles(folder, config["max_position_embeddings"], config["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelFilesError(
            f"{path} must name max_position_embeddings and vocab_size: {error!r}"
        ) from error


def _gguf(path: Path) -> ModelFiles:
    try:
        metadata: dict[str, Any] = read_metadata(path)
        context_length = metadata[f"{metadata['general.architecture']}.context_length"]
        return ModelFiles(path, context_length, len(metadata["tokenizer.ggml.tokens"]))
    except ArtifactError as error:
        raise ModelFilesError(str(error)) from error
    except KeyError as error:
        raise ModelFilesError(f"{path} lacks the metadata key {error}.") from error
