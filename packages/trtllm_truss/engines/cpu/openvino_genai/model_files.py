"""Files of an engine folder for the CPU, and its vocabulary and end token, which guides need."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino import opset15
from openvino.utils.node_factory import NodeFactory

from trtllm_truss.engines.gguf import read_metadata
from trtllm_truss.errors import ArtifactError
from trtllm_truss.literals import token_bytes


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


_BYTE = 6
"""GGUF's type of a token `<0xXX>`: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""
_ROLES = {"bos": "bos", "eos": "eos", "padding": "pad"}
"""GGUF's names of special tokens, and those of `config.json`."""


def load_vocabulary(path: Path) -> openvino_genai.Tokenizer:
    """Load a tokenizer for guides; one from GGUF cannot encode, and decodes special tokens too.

    GenAI 2026.4 itself takes two seconds for the 49,152 tokens of SmolLM2 and their merges: it
    copies a table of bytes for each.

    Args:
        path: a GGUF file, or a folder with an OpenVINO IR.

    Raises:
        RuntimeError: GenAI cannot read it.
    """
    metadata: dict[str, Any] = {} if path.is_dir() else read_metadata(path)
    if (contents := _contents(metadata)) is None:
        return openvino_genai.Tokenizer(path)
    ids = {name: metadata.get(f"tokenizer.ggml.{role}_token_id") for role, name in _ROLES.items()}
    config = {f"{name}_token_id": found for name, found in ids.items() if found is not None}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        decoder = _decoder(contents)
        openvino.save_model(decoder, folder / "openvino_detokenizer.xml", compress_to_fp16=False)
        return openvino_genai.Tokenizer(folder)


def _contents(metadata: dict[str, Any]) -> list[bytes] | None:
    """Return the bytes of each token; None for a vocabulary that is not BPE."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            return [token_bytes(token) for token in tokens]
        case "llama":  # SentencePiece's
            kinds = metadata["tokenizer.ggml.token_type"]
            return [
                bytes([int(token[1:-1], 16)]) if kind == _BYTE else _spaced(token).encode()
                for token, kind in zip(tokens, kinds, strict=True)
            ]
    return None


def _spaced(token: str) -> str:
    return token.replace("\u2581", " ")


def _decoder(tokens: list[bytes]) -> openvino.Model:
    """Return a model from ids, INT64 [n, m], to texts, strings [n]."""
    ends = np.cumsum([len(token) for token in tokens], dtype=np.int32)
    begins = np.concatenate([np.zeros(1, np.int32), ends[:-1]])
    characters = np.frombuffer(b"".join(tokens), np.uint8)
    ids = opset15.parameter([-1, -1], np.int64)
    vocabulary = [opset15.constant(array) for array in (begins, ends, characters)]
    decoded = _operators().create("VocabDecoder", [ids, *vocabulary]).outputs()
    joined = _operators().create("FuzeRagged", decoded[:4]).outputs()
    texts = opset15.string_tensor_pack(*joined, decoded[4])
    return openvino.Model([texts], [ids], "detokenizer")


@cache  # keep alive: destroying it unloads the code of nodes in use
def _operators() -> NodeFactory:
    """Return OpenVINO's operators, with those for text."""
    package = importlib.util.find_spec("openvino_tokenizers")
    assert package is not None
    assert package.origin is not None
    factory = NodeFactory()
    factory.add_extension(Path(package.origin).parent / "lib" / "libopenvino_tokenizers.so")
    return factory
