"""Inspection of an engine folder or of its listing."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from trtllm_truss.engines.config_schemas import CONFIG_FILE, parse_config
from trtllm_truss.engines.gguf import read_metadata
from trtllm_truss.engines.json_files import (
    INT32_MAX,
    JsonObject,
    json_object,
    parse_json,
    read_model,
)
from trtllm_truss.engines.layout import (
    FLAT,
    GGUF_SUFFIX,
    WEIGHTS_SUFFIX,
    Layout,
    Placement,
    find_engine,
)
from trtllm_truss.engines.manifest import (
    MANIFEST_FILE,
    Manifest,
    TargetGpu,
    parse_manifest,
    read_manifest,
)
from trtllm_truss.engines.model_config import Checkpoint, parse_checkpoint
from trtllm_truss.engines.rank_files import ENGINE_SUFFIX, RankFiles, match_rank_files
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig, Quantization
from trtllm_truss.engines.weight_files import INDEX_FILE, WeightFiles, find_weights
from trtllm_truss.engines.weight_format import QUANTIZATION_FILE, WeightFormat, weight_format
from trtllm_truss.errors import ArtifactError

_CPU_MAX_BATCH_SIZE = 64
_LLM_MAX_BATCH_SIZE = 256
_UNKNOWN_CONTEXT = 2048
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class _CpuConfig(JsonObject):
    max_position_embeddings: int = Field(ge=2, le=INT32_MAX)


class EngineKind(enum.Enum):
    """Kind of an engine; the value is the Triton backend that serves it."""

    TENSORRT_LLM = "tensorrtllm"
    CPU = "openvino_genai"
    LLM_API = "llm_api"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """Description of an engine without its weights.

    Attributes:
        kind: its kind.
        max_sequence_tokens: limit of prompt and generated tokens together.
        max_input_tokens: limit of prompt tokens; the settings may raise it (`engines.checkpoint`).
        max_batch_size: sequences that run at once.
        max_beam_width: beams a request may ask for.
        tensor_parallelism: GPUs that one layer is split over.
        pipeline_parallelism: groups of layers on different GPUs.
        config: the contents of a TensorRT-LLM engine's ``config.json``; None for other kinds.
        rank_files: the files of a TensorRT-LLM engine; None for other kinds.
        checkpoint: the contents of a checkpoint's ``config.json``; None for other kinds.
        weights: the files of a checkpoint's weights; None for other kinds.
        weight_format: the number format of a checkpoint's weights; None for other kinds.
        llm_args: the arguments of ``tensorrt_llm.LLM``, once the settings have completed a
            checkpoint (`engines.checkpoint`); None before and for other kinds.
        manifest: the record of its build, if any.
        placement: its location in the repository.
    """

    kind: EngineKind
    max_sequence_tokens: int
    max_input_tokens: int
    max_batch_size: int
    max_beam_width: int = 1
    tensor_parallelism: int = 1
    pipeline_parallelism: int = 1
    config: EngineConfig | None = None
    rank_files: RankFiles | None = None
    checkpoint: Checkpoint | None = None
    weights: WeightFiles | None = None
    weight_format: WeightFormat | None = None
    llm_args: Mapping[str, Any] | None = None
    manifest: Manifest | None = None
    placement: Placement = FLAT

    @property
    def number_formats(self) -> Quantization | None:
        """Its quantization in TensorRT-LLM's names; None for an engine of the CPU."""
        if self.weight_format is not None:
            return self.weight_format.quantization
        return None if self.config is None else self.config.quantization

    @property
    def target_gpu(self) -> TargetGpu | None:
        return None if self.manifest is None else self.manifest.gpu

    @property
    def largest_rank_bytes(self) -> int | None:
        """Bytes of the weights of the rank that has most; None for an engine of the CPU."""
        if self.weights is not None:
            return -(-self.weights.total_bytes // self.world_size)
        return None if self.rank_files is None else self.rank_files.largest_rank_bytes

    @property
    def takes_adapters(self) -> bool:
        """True if it was built with the LoRA plugin, or is a checkpoint with adapters."""
        if self.llm_args is not None:
            return bool(self.llm_args.get("lora_config"))
        return self.config is not None and self.config.plugins.lora

    @property
    def world_size(self) -> int:
        """Ranks, one GPU each; 1 for an engine of the CPU."""
        if self.config is not None:
            return self.config.parallelism.world_size
        return self.tensor_parallelism * self.pipeline_parallelism

    @property
    def server_ranks(self) -> int:
        """Triton processes, one for each rank; the LLM API starts its ranks itself, under one."""
        return 1 if self.kind is EngineKind.LLM_API else self.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(EngineDescription):
    """An engine on this machine.

    Attributes:
        folder: its files.
        tokenizer_folder: files of its tokenizer, if the repository has any.
    """

    folder: Path
    tokenizer_folder: Path


def inspect_engine(repository: Path) -> Engine:
    """Inspect an engine on this machine.

    Args:
        repository: its folder, flat or in LMI's layout.

    Raises:
        ArtifactError: the folder has no engine, or its description cannot be read.
    """
    try:
        sizes = _sizes(repository)
        placement = find_engine(sizes)
        folder = repository / placement.folder
        if placement.layout is Layout.GGUF:
            described = _describe_gguf(next(folder.glob(f"*{GGUF_SUFFIX}")))
            description = replace(described, manifest=read_manifest(folder))
        else:
            _refuse_lfs_pointers(folder, placement.sizes(sizes))
            description = inspect_files(sizes, lambda path: (repository / path).read_bytes())
    except ArtifactError as error:
        raise ArtifactError(f"engine_repository {str(repository)!r}: {error.message}") from error
    except OSError as error:
        raise ArtifactError(
            f"engine_repository {str(repository)!r} cannot be read ({error.strerror}); check the "
            "path and its permissions."
        ) from error
    known = {field.name: getattr(description, field.name) for field in fields(description)}
    return Engine(folder=folder, tokenizer_folder=repository / placement.tokenizer_folder, **known)


def inspect_files(sizes: Mapping[str, int], read: Callable[[str], bytes]) -> EngineDescription:
    """Inspect an engine by its listing and a few small files, before its weights are fetched.

    Args:
        sizes: bytes of every file by its path below the repository.
        read: returns the contents of one of them.

    Raises:
        ArtifactError: the files describe no engine, or a GGUF file, whose header describes it.
    """
    placement = find_engine(sizes)
    here = placement.sizes(sizes)
    contents: dict[str, object] = {}
    of_checkpoints = (INDEX_FILE, QUANTIZATION_FILE)
    optional = of_checkpoints if placement.layout is Layout.CHECKPOINT else ()
    for name in (CONFIG_FILE, MANIFEST_FILE, *optional):
        if name in here:
            contents[name] = parse_json(name, read(placement.paths([name])[0]))
        elif name == CONFIG_FILE and placement.layout is not Layout.GGUF:
            raise ArtifactError(f"{name} is missing; add the one that the build wrote.")
    description = inspect_config(
        contents.get(CONFIG_FILE),
        here.items(),
        contents.get(MANIFEST_FILE),
        index=contents.get(INDEX_FILE),
        quantization=contents.get(QUANTIZATION_FILE),
    )
    return replace(description, placement=placement)


def inspect_config(
    config: object,
    files: Iterable[tuple[str, int]],
    manifest: object = None,
    *,
    index: object = None,
    quantization: object = None,
) -> EngineDescription:
    """Inspect an engine by parsed contents.

    Args:
        config: the parsed ``config.json``.
        files: every file in the engine's folder: its path, ``/`` between folders, and its bytes.
        manifest: the parsed ``engine.manifest.json``, if there is one.
        index: the parsed ``model.safetensors.index.json`` of a checkpoint, if there is one.
        quantization: the parsed ``hf_quant_config.json`` of a checkpoint, if there is one.

    Raises:
        ArtifactError: the contents describe no engine, or a GGUF file.
    """
    sizes = dict(files)
    placement = find_engine(sizes)
    if placement.layout is Layout.GGUF:
        raise ArtifactError("a GGUF engine has no config.json; fetch the file and inspect it.")
    recorded = None if manifest is None else parse_manifest(manifest)
    if placement.layout is Layout.CHECKPOINT:
        described = _describe_checkpoint(config, find_weights(sizes, index), quantization)
        return replace(described, placement=placement, manifest=recorded)
    values = json_object(CONFIG_FILE, config)
    if placement.layout is Layout.OPENVINO:
        context = read_model(_CpuConfig, CONFIG_FILE, values).max_position_embeddings
        return replace(_describe_cpu(context), placement=placement, manifest=recorded)
    return _describe_tensorrt_llm(parse_config(values), sizes, recorded)


def _describe_checkpoint(
    config: object, weights: WeightFiles, quantization: object
) -> EngineDescription:
    checkpoint = parse_checkpoint(config)
    context = max(2, checkpoint.positions or _UNKNOWN_CONTEXT)
    return EngineDescription(
        kind=EngineKind.LLM_API,
        max_sequence_tokens=context,
        max_input_tokens=context - 1,
        max_batch_size=_LLM_MAX_BATCH_SIZE,
        checkpoint=checkpoint,
        weights=weights,
        weight_format=weight_format(checkpoint, quantization),
    )


def _describe_tensorrt_llm(
    config: EngineConfig, sizes: Mapping[str, int], manifest: Manifest | None
) -> EngineDescription:
    return EngineDescription(
        kind=EngineKind.TENSORRT_LLM,
        max_sequence_tokens=config.limits.max_sequence_tokens,
        max_input_tokens=config.max_prompt_tokens(),
        max_batch_size=config.limits.max_batch_size,
        max_beam_width=config.limits.max_beam_width,
        tensor_parallelism=config.parallelism.tensor,
        pipeline_parallelism=config.parallelism.pipeline,
        config=config,
        rank_files=match_rank_files(config, sizes),
        manifest=manifest,
    )


def _describe_gguf(file: Path) -> EngineDescription:
    metadata = read_metadata(file)
    context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if not isinstance(context, int) or not 2 <= context <= INT32_MAX:
        raise ArtifactError(
            f"{file.name} has no context length from 2 to {INT32_MAX} in its metadata; convert it "
            "again."
        )
    return replace(_describe_cpu(context), placement=Placement(Layout.GGUF))


def _describe_cpu(context: int) -> EngineDescription:
    return EngineDescription(
        kind=EngineKind.CPU,
        max_sequence_tokens=context,
        max_input_tokens=context - 1,
        max_batch_size=_CPU_MAX_BATCH_SIZE,
    )


def _sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        raise ArtifactError("the folder does not exist; check engine_repository.")
    files = (file for depth in range(4) for file in folder.glob("*/" * depth + "*"))
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size for file in files if file.is_file()
    }


def _refuse_lfs_pointers(folder: Path, sizes: Mapping[str, int]) -> None:
    for name in sizes:
        if "/" not in name and name.endswith((ENGINE_SUFFIX, WEIGHTS_SUFFIX)):
            with (folder / name).open("rb") as file:
                if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                    raise ArtifactError(
                        f"{name} is a Git LFS pointer; run `git lfs pull` in the repository."
                    )
