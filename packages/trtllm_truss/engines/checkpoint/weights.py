"""The weights of a Hugging Face checkpoint: architecture, files and number format.

Architectures are listed as the LLM API's PyTorch backend loads them, by TensorRT-LLM release. Files
are safetensors, in one file or in shards with an index. The LLM API loads ``*.safetensors`` of the
top folder, without files named "consolidated" where shards exist
(``_torch/models/checkpoints/hf/weight_loader.py`` in NVIDIA/TensorRT-LLM). ``config.json`` and
``hf_quant_config.json`` specify the number format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_truss.engines.diagnostics import shortlist
from trtllm_truss.engines.engine_files import WEIGHTS_SUFFIX
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.engines.quantization import Quantization
from trtllm_truss.errors import ArtifactError
from trtllm_truss.releases import FACTS, Fact, Release, read_facts, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture; `releases/architectures.toml` explains the columns."""

    name: str
    since: Release
    minimum_capability: ComputeCapability | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """An architecture that TensorRT-LLM knows but this project does not serve."""

    name: str
    reason: str
    since: Release
    source: str


ARCHITECTURES = {
    row.name: row for row in read_table("architectures", "architectures", Architecture)
}
UNSERVED = {row.name: row.reason for row in read_table("architectures", "unserved", Unserved)}

_WITHOUT_CHUNKS = read_facts("architectures", "without_chunks")
_WITHOUT_REUSE = read_facts("architectures", "without_reuse")
_CHUNKED_LATENTS = read_facts("architectures", "chunked_latents")


def chunks_prompts(architecture: str, version: str | None) -> bool:
    """Return False if a release does not chunk a model's prefill; None means the newest release."""
    return not _holds(_WITHOUT_CHUNKS.get(architecture), version)


def reuses_blocks(architecture: str, version: str | None) -> bool:
    """Return False if a release does not reuse a model's blocks; None means the newest release."""
    return not _holds(_WITHOUT_REUSE.get(architecture), version)


def chunks_latents(version: str | None, gpu: ComputeCapability | None) -> bool:
    """Return False if latent attention cannot be chunked; None means any release or any GPU."""
    if version is None or gpu is None:
        return True
    return _holds(_CHUNKED_LATENTS.get(f"{gpu[0]}.{gpu[1]}"), version)


def _holds(fact: Fact | None, version: str | None) -> bool:
    return fact is not None and fact.holds(version, unknown=fact.until is None)


INDEX_FILE = "model.safetensors.index.json"

_OTHER_FORMAT = "consolidated"
_SHARD = re.compile(r"-[0-9]{5}-of-([0-9]{5})\.safetensors$")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The weight files that are loaded.

    Attributes:
        names: paths in the checkpoint's folder.
        total_bytes: size of all files, about the GPU memory of the weights over all ranks.
    """

    names: tuple[str, ...]
    total_bytes: int


def find_weights(sizes: Mapping[str, int], index: object | None) -> WeightFiles:
    """Select a checkpoint's weights and verify that the listing contains all of them.

    Args:
        sizes: size in bytes of every file, by path below the checkpoint's folder.
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


QUANTIZATION_FILE = "hf_quant_config.json"
"""ModelOpt's description of quantized weights, next to a checkpoint's ``config.json``."""

_MAX_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A quantization method that TensorRT-LLM reads.

    `releases/number_formats.toml` explains the columns.
    """

    name: str
    title: str
    algorithm: str | None = None
    described: bool = False
    block: tuple[int, ...] = ()
    since: Release
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadMethod:
    """A quantization method that it does not read."""

    name: str
    title: str
    source: str


_METHODS = {row.name: row for row in read_table("number_formats", "weight_formats", Method)}
_UNREAD = {row.name: row for row in read_table("number_formats", "unread_weights", UnreadMethod)}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A number format.

    Attributes:
        quantization: by TensorRT-LLM's names.
        name: for messages; empty for unquantized weights.
        since: the first TensorRT-LLM release that reads it; None if none does.
    """

    quantization: Quantization
    name: str = ""
    since: Release | None = FACTS["serves_checkpoints"].since


def weight_format(checkpoint: Checkpoint, described: object = None) -> WeightFormat:
    """Determine the format.

    Args:
        checkpoint: the contents of ``config.json``.
        described: the parsed `QUANTIZATION_FILE`, if any; takes precedence.
    """
    section = checkpoint.quantization
    if isinstance(described, Mapping):
        inner = described.get("quantization")
        section = inner if isinstance(inner, Mapping) else described
        return _known(checkpoint, section, _METHODS[QUANTIZATION_FILE])
    if not section:
        return WeightFormat(Quantization(checkpoint.dtype))
    method = (_text(section.get("quant_method")) or "").lower()
    known = _METHODS.get(method)
    if known is not None and _is_read(section, known):
        return _known(checkpoint, section, known)
    name = f"quant_method {method or 'unnamed'}"
    if unread := _UNREAD.get(method):
        name = f"{unread.title} ({name})"
    return WeightFormat(Quantization(checkpoint.dtype), name, None)


def _is_read(section: Mapping[str, Any], method: Method) -> bool:
    return not method.block or section.get("weight_block_size") == list(method.block)


def _known(checkpoint: Checkpoint, section: Mapping[str, Any], method: Method) -> WeightFormat:
    quantization, name = Quantization(checkpoint.dtype, method.algorithm), method.title
    if method.described:
        algorithm = _text(section.get("quant_algo"))
        cache = _text(section.get("kv_cache_quant_algo"))
        quantization = Quantization(checkpoint.dtype, algorithm, cache)
        name = f"{method.title} {algorithm or ''}"
    return WeightFormat(quantization, name, method.since)


def _text(value: object) -> str | None:
    return value[:_MAX_NAME] if isinstance(value, str) and value else None
