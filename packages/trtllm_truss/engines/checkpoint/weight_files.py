"""The weights of a Hugging Face checkpoint: safetensors, in one file or in shards with an index.

The LLM API loads ``*.safetensors`` of the top folder, without files named "consolidated" where
shards exist (``_torch/models/checkpoints/hf/weight_loader.py`` in NVIDIA/TensorRT-LLM).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtllm_truss.engines.diagnostics import shortlist
from trtllm_truss.engines.json_files import WEIGHTS_SUFFIX
from trtllm_truss.errors import ArtifactError

INDEX_FILE = "model.safetensors.index.json"

_OTHER_FORMAT = "consolidated"
_SHARD = re.compile(r"-[0-9]{5}-of-([0-9]{5})\.safetensors$")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files that are loaded.

    Attributes:
        names: in the checkpoint's folder.
        total_bytes: of all files, about the GPU memory of the weights over all ranks.
    """

    names: tuple[str, ...]
    total_bytes: int


def find_weights(sizes: Mapping[str, int], index: object | None) -> WeightFiles:
    """Select the weights of a checkpoint and verify that the listing has all of them.

    Args:
        sizes: bytes of every file by its path below the checkpoint's folder.
        index: the parsed `INDEX_FILE`; None without one.

    Raises:
        ArtifactError: a shard is missing or empty, or the index is malformed.
    """
    names = _indexed(index) if index is not None else _listed(sizes)
    missing = [name for name in names if name not in sizes]
    if missing:
        raise ArtifactError(
            f"{INDEX_FILE} names {shortlist(missing)}, which the repository lacks; upload every "
            "shard of the checkpoint."
        )
    empty = [name for name in names if not sizes[name]]
    if empty:
        raise ArtifactError(f"{shortlist(empty)} in the checkpoint is empty; upload it again.")
    return WeightFiles(tuple(names), sum(sizes[name] for name in names))


def _indexed(index: object) -> list[str]:
    tensors = index.get("weight_map") if isinstance(index, Mapping) else None
    files = list(tensors.values()) if isinstance(tensors, Mapping) else []
    names = sorted({name for name in files if isinstance(name, str)})
    foreign = [name for name in names if "/" in name or not name.endswith(WEIGHTS_SUFFIX)]
    if foreign or not names or any(not isinstance(name, str) for name in files):
        raise ArtifactError(
            f"{INDEX_FILE} names {shortlist(foreign) or 'no files'}, and only {WEIGHTS_SUFFIX} "
            "files of the same folder are loaded; fetch the checkpoint again."
        )
    return names


def _listed(sizes: Mapping[str, int]) -> list[str]:
    here = sorted(name for name in sizes if "/" not in name and name.endswith(WEIGHTS_SUFFIX))
    names = [name for name in here if not name.startswith(_OTHER_FORMAT)]
    if not names:
        raise ArtifactError(
            f"{shortlist(here)} uses the tensor names of another format; name the repository of "
            f"the checkpoint in Hugging Face's format (model{WEIGHTS_SUFFIX})."
        )
    _require_all_shards(names)
    return names


def _require_all_shards(names: Sequence[str]) -> None:
    counts = {int(match[1]) for name in names if (match := _SHARD.search(name))}
    if counts and counts != {len(names)}:
        raise ArtifactError(
            f"the checkpoint holds {len(names)} of {max(counts)} shards; upload all of them with "
            f"{INDEX_FILE}."
        )
