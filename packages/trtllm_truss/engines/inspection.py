"""A folder, or a listing of one, becomes an `Engine`: what it holds decides what serves it."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trtllm_truss.engines.config_schemas import CONFIG_FILE, parse_config
from trtllm_truss.engines.gguf import read_metadata
from trtllm_truss.engines.json_fields import Fields
from trtllm_truss.engines.layout import GGUF_SUFFIX, Layout, recognise_layout
from trtllm_truss.engines.rank_files import ENGINE_SUFFIX, RankFiles, match_rank_files
from trtllm_truss.engines.target_gpu import MANIFEST_FILE, TargetGpu, parse_target_gpu
from trtllm_truss.engines.tensorrt_llm_config import EngineConfig
from trtllm_truss.errors import ArtifactError

_CPU_MAX_BATCH_SIZE = 64
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class EngineKind(enum.Enum):
    """What an engine folder holds; the value is the Triton backend that serves it."""

    TENSORRT_LLM = "tensorrtllm"
    CPU = "openvino_genai"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What is known of an engine without its weights.

    Attributes:
        kind: what it is.
        max_sequence_tokens: the most that prompt and generated tokens may be together.
        max_input_tokens: the most that a prompt may be, without chunked context.
        max_batch_size: sequences that run at once.
        max_beam_width: beams a request may ask for.
        tensor_parallelism: GPUs that one layer is split over.
        pipeline_parallelism: groups of layers on different GPUs.
        config: all that ``config.json`` says; None for an engine of the CPU.
        rank_files: the files it consists of; None for an engine of the CPU.
        target_gpu: what it was built for, if that is recorded.
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
    target_gpu: TargetGpu | None = None

    @property
    def world_size(self) -> int:
        """Ranks, one process and one GPU each; 1 for an engine of the CPU."""
        return 1 if self.config is None else self.config.parallelism.world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(EngineDescription):
    """An engine that lies on this machine.

    Attributes:
        folder: where its files lie.
    """

    folder: Path


def inspect_engine(folder: Path) -> Engine:
    """Reads what an engine folder says about itself.

    Raises:
        ArtifactError: the folder holds no engine, or one whose description cannot be read.
    """
    try:
        sizes = _sizes(folder)
        if recognise_layout(sizes) is Layout.GGUF:
            description = _describe_gguf(next(folder.glob(f"*{GGUF_SUFFIX}")))
        else:
            _refuse_lfs_pointers(folder, sizes)
            manifest = _json(folder / MANIFEST_FILE) if MANIFEST_FILE in sizes else None
            description = inspect_config(_json(folder / CONFIG_FILE), sizes.items(), manifest)
    except ArtifactError as error:
        raise ArtifactError(f"engine_repository {str(folder)!r}: {error.message}") from error
    except OSError as error:
        raise ArtifactError(
            f"engine_repository {str(folder)!r} cannot be read ({error.strerror}); check the path "
            "and its permissions."
        ) from error
    known = {field.name: getattr(description, field.name) for field in fields(description)}
    return Engine(folder=folder, **known)


def inspect_config(
    config: object,
    files: Iterable[tuple[str, int]],
    manifest: object = None,
) -> EngineDescription:
    """The same from ``config.json`` and a listing alone, before any weights are here.

    Args:
        config: the parsed ``config.json``.
        files: every file of the repository: its path, ``/`` between folders, and its bytes.
        manifest: the parsed ``engine.manifest.json``, if the repository has one.

    Raises:
        ArtifactError: they describe no engine, or a GGUF file, which describes itself.
    """
    sizes = dict(files)
    layout = recognise_layout(sizes)
    if layout is Layout.GGUF:
        raise ArtifactError("a GGUF engine has no config.json; fetch the file and inspect it.")
    values = _object(config, CONFIG_FILE)
    if layout is Layout.OPENVINO:
        return _describe_cpu(
            Fields(CONFIG_FILE, values).integer("max_position_embeddings", least=2)
        )
    return _describe_tensorrt_llm(parse_config(values), sizes, manifest)


def _describe_tensorrt_llm(
    config: EngineConfig, sizes: Mapping[str, int], manifest: object
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
        target_gpu=(
            None if manifest is None else parse_target_gpu(_object(manifest, MANIFEST_FILE))
        ),
    )


def _describe_gguf(file: Path) -> EngineDescription:
    metadata = read_metadata(file)
    context = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if not isinstance(context, int) or context < 2:
        raise ArtifactError(f"{file.name} has no context length in its metadata; convert it again.")
    return _describe_cpu(context)


def _describe_cpu(context: int) -> EngineDescription:
    return EngineDescription(
        kind=EngineKind.CPU,
        max_sequence_tokens=context,
        max_input_tokens=context - 1,
        max_batch_size=_CPU_MAX_BATCH_SIZE,
    )


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files in a folder and in the folders right below it."""
    if not folder.is_dir():
        raise ArtifactError("there is no such folder; check engine_repository.")
    files = [*folder.glob("*"), *folder.glob("*/*"), *folder.glob("*/*/*")]
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size for file in files if file.is_file()
    }


def _refuse_lfs_pointers(folder: Path, sizes: Mapping[str, int]) -> None:
    for name in sizes:
        if "/" not in name and name.endswith(ENGINE_SUFFIX):
            with (folder / name).open("rb") as file:
                if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                    raise ArtifactError(
                        f"{name} is only a Git LFS pointer; run `git lfs pull` in the repository."
                    )


def _json(file: Path) -> object:
    try:
        content: object = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ArtifactError(f"{file.name} is missing; add the one that the build wrote.") from None
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file.name} is not valid JSON ({error}); fetch it again.") from None
    return content


def _object(content: object, name: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ArtifactError(f"{name} is not a JSON object; take it from the build's output.")
    return content
