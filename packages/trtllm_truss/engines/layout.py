"""Kind and location of an engine, by a list of files.

Two layouts are supported. Flat: everything in the repository's top folder. And that of LMI, the
large-model containers of DJL Serving (``isValidTrtLlmModelRepo`` in its ``LmiUtils.java`` up to
0.32)::

    <name>/1/*.engine, <name>/1/config.json     the engine
    <name>/config.pbtxt                         Triton's, ignored
    <name>/tokenizer_config.json, …             the tokenizer

The repository is the folder above ``<name>``, that folder itself, or one further up.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtllm_truss.engines.config_schemas import CONFIG_FILE
from trtllm_truss.engines.diagnostics import shortlist
from trtllm_truss.engines.rank_files import ENGINE_SUFFIX
from trtllm_truss.errors import ArtifactError

OPENVINO_MODEL = "openvino_model.xml"
GGUF_SUFFIX = ".gguf"
WEIGHTS_SUFFIX = ".safetensors"

_LMI_MARK = "config.pbtxt"
_WANTED = (
    f"An engine repository holds {CONFIG_FILE} with rank*{ENGINE_SUFFIX} (TensorRT-LLM) or with "
    f"*{WEIGHTS_SUFFIX} (a Hugging Face checkpoint), one {GGUF_SUFFIX} file or {OPENVINO_MODEL} "
    f"(CPU), flat in its top folder; or LMI's <name>/1/"
    f"rank*{ENGINE_SUFFIX} with <name>/{_LMI_MARK}."
)
_PICKLED = (
    f"a model's weights as pickles; convert them to {WEIGHTS_SUFFIX}, or build an engine from them"
)
_FOREIGN = {
    WEIGHTS_SUFFIX: f"a model's weights without their {CONFIG_FILE}; add it",
    **dict.fromkeys((".bin", ".pt", ".pth"), _PICKLED),
    ".onnx": "an ONNX model; TensorRT-LLM does not load it",
    ".plan": "a plain TensorRT plan; TensorRT-LLM does not load it",
    ".trt": "a plain TensorRT plan; TensorRT-LLM does not load it",
}


class Layout(enum.Enum):
    TENSORRT_LLM = "config.json with one engine file per rank"
    OPENVINO = "an OpenVINO IR with its config.json"
    GGUF = "one GGUF file"
    CHECKPOINT = "a Hugging Face checkpoint"


@dataclass(frozen=True, slots=True)
class Placement:
    """Location of an engine in a repository.

    Attributes:
        layout: its kind.
        folder: path of its folder, ``/`` between folders; empty for the top.
        tokenizer_folder: the same for the tokenizer, if it has one.
    """

    layout: Layout
    folder: str = ""
    tokenizer_folder: str = ""

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return _below(self.folder, sizes)

    def tokenizer_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return _below(self.tokenizer_folder, sizes)

    def marks(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the paths of files that mark the layout."""
        return [path for path in self.tokenizer_paths([_LMI_MARK]) if self.folder and path in sizes]

    def paths(self, names: Iterable[str]) -> list[str]:
        return [_join(self.folder, name) for name in names]

    def tokenizer_paths(self, names: Iterable[str]) -> list[str]:
        return [_join(self.tokenizer_folder, name) for name in names]


FLAT = Placement(Layout.TENSORRT_LLM)
"""Output of TensorRT-LLM's builder."""


def find_engine(sizes: Mapping[str, int]) -> Placement:
    """Locate the engine of a repository and determine its kind.

    Args:
        sizes: bytes of every file by its path below the repository, ``/`` between folders.

    Raises:
        ArtifactError: the repository has no engine, several engines, or an incomplete one.
    """
    of_lmi = _lmi_folders(sizes)
    if len(of_lmi) > 1:
        raise ArtifactError(
            f"the engine repository holds {len(of_lmi)} engines ({shortlist(of_lmi)}); name the "
            "folder of one, or keep only one."
        )
    if of_lmi and not any("/" not in name and name.endswith(ENGINE_SUFFIX) for name in sizes):
        folder = _join(of_lmi[0], "1")
        return Placement(_flat_layout(_below(folder, sizes)), folder, of_lmi[0])
    return Placement(_flat_layout(sizes))


def _flat_layout(sizes: Mapping[str, int]) -> Layout:
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
            "keep only one."
        )
    if ggufs:
        _refuse_empty(sizes, GGUF_SUFFIX)
        return Layout.GGUF
    if OPENVINO_MODEL in sizes:
        return Layout.OPENVINO
    if CONFIG_FILE in sizes and any(name.endswith(WEIGHTS_SUFFIX) for name in names):
        return Layout.CHECKPOINT
    raise ArtifactError(
        f"the engine repository holds {_describe_contents(sizes, names)}. {_WANTED}"
    )


def _lmi_folders(sizes: Mapping[str, int]) -> list[str]:
    """List folders with a ``config.pbtxt`` and engines in their folder ``1``, at most two deep."""
    versions = {PurePosixPath(name).parent for name in sizes if name.endswith(ENGINE_SUFFIX)}
    folders = {version.parent for version in versions if version.name == "1"}
    names = ["" if folder == PurePosixPath() else str(folder) for folder in folders]
    return sorted(name for name in names if _join(name, _LMI_MARK) in sizes and name.count("/") < 2)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _below(folder: str, sizes: Mapping[str, int]) -> dict[str, int]:
    prefix = f"{folder}/" if folder else ""
    return {
        name.removeprefix(prefix): size for name, size in sizes.items() if name.startswith(prefix)
    }


def _refuse_empty(sizes: Mapping[str, int], suffix: str) -> None:
    empty = sorted(name for name in sizes if name.endswith(suffix) and not sizes[name])
    if empty:
        raise ArtifactError(
            f"{shortlist(empty)} in the engine repository is empty; upload it again."
        )


def _describe_contents(sizes: Mapping[str, int], names: list[str]) -> str:
    nested = sorted(
        {
            str(PurePosixPath(name).parent)
            for name in sizes
            if "/" in name and name.endswith((ENGINE_SUFFIX, GGUF_SUFFIX, OPENVINO_MODEL))
        }
    )
    if {"encoder", "decoder"} <= set(nested):
        return "an encoder and a decoder, which is not supported"
    if nested:
        return f"no engine in its top folder but in {shortlist(nested)}; move the files up"
    for suffix, meaning in _FOREIGN.items():
        foreign = [name for name in names if name.endswith(suffix)]
        if foreign:
            return f"no engine, but {shortlist(foreign)}: {meaning}"
    if CONFIG_FILE in sizes:
        return f"{CONFIG_FILE} but no engine files"
    return "no engine"
