"""What kind of engine a list of files is, before any of them is opened."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import PurePosixPath

from trtllm_truss.engines.config_schemas import CONFIG_FILE
from trtllm_truss.engines.findings import shortlist
from trtllm_truss.engines.rank_files import ENGINE_SUFFIX
from trtllm_truss.errors import ArtifactError

OPENVINO_MODEL = "openvino_model.xml"
GGUF_SUFFIX = ".gguf"

_WANTED = (
    f"An engine repository holds {CONFIG_FILE} with rank*{ENGINE_SUFFIX} (TensorRT-LLM), one "
    f"{GGUF_SUFFIX} file or {OPENVINO_MODEL} (CPU), flat in its top folder."
)
_FOREIGN = {
    ".safetensors": "a model's weights; build an engine from them first",
    ".bin": "a model's weights; build an engine from them first",
    ".pt": "a model's weights; build an engine from them first",
    ".pth": "a model's weights; build an engine from them first",
    ".onnx": "an ONNX model; TensorRT-LLM does not load it",
    ".plan": "a plain TensorRT plan; TensorRT-LLM does not load it",
    ".trt": "a plain TensorRT plan; TensorRT-LLM does not load it",
}


class Layout(enum.Enum):
    """How an engine's files lie."""

    TENSORRT_LLM = "config.json with one engine file per rank"
    OPENVINO = "an OpenVINO IR with its config.json"
    GGUF = "one GGUF file"


def recognise_layout(sizes: Mapping[str, int]) -> Layout:
    """Decides what a repository holds.

    Args:
        sizes: bytes of every file by its path below the repository, ``/`` between folders.

    Raises:
        ArtifactError: nothing that can be served lies flat in it, or what does is incomplete.
    """
    names = sorted(name for name in sizes if "/" not in name)
    if any(name.endswith(ENGINE_SUFFIX) for name in names):
        _refuse_empty(sizes, ENGINE_SUFFIX)
        if CONFIG_FILE not in sizes:
            raise ArtifactError(
                f"the engine repository has engine files but no {CONFIG_FILE}; add the one that "
                "the build wrote beside them."
            )
        return Layout.TENSORRT_LLM
    ggufs = [name for name in names if name.endswith(GGUF_SUFFIX)]
    if len(ggufs) > 1:
        raise ArtifactError(
            f"the engine repository holds {len(ggufs)} {GGUF_SUFFIX} files ({shortlist(ggufs)}); "
            "leave one."
        )
    if ggufs:
        _refuse_empty(sizes, GGUF_SUFFIX)
        return Layout.GGUF
    if OPENVINO_MODEL in sizes:
        return Layout.OPENVINO
    raise ArtifactError(f"the engine repository holds {_what_instead(sizes, names)}. {_WANTED}")


def _refuse_empty(sizes: Mapping[str, int], suffix: str) -> None:
    empty = sorted(name for name in sizes if name.endswith(suffix) and not sizes[name])
    if empty:
        raise ArtifactError(
            f"{shortlist(empty)} in the engine repository is empty; upload it again."
        )


def _what_instead(sizes: Mapping[str, int], names: list[str]) -> str:
    nested = sorted(
        {
            str(PurePosixPath(name).parent)
            for name in sizes
            if "/" in name and name.endswith((ENGINE_SUFFIX, GGUF_SUFFIX, OPENVINO_MODEL))
        }
    )
    if {"encoder", "decoder"} <= set(nested):
        return "an encoder and a decoder, and such models are not served"
    if nested:
        return f"no engine at its top; there is one in {shortlist(nested)}: move its files up"
    for suffix, meaning in _FOREIGN.items():
        foreign = [name for name in names if name.endswith(suffix)]
        if foreign:
            return f"no engine, but {shortlist(foreign)}: {meaning}"
    if CONFIG_FILE in sizes:
        return f"{CONFIG_FILE} but no engine files"
    return "no engine"
