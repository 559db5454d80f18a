"""What cannot be built, said before anything is downloaded."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.builder.checks.cpu import cpu_problems
from trtllm_truss.builder.checks.gpu import gpu_problems
from trtllm_truss.builder.checks.quantization import (
    quantization_problems,
    quantized_already,
)
from trtllm_truss.builder.planning.checkpoint import Checkpoint
from trtllm_truss.builder.planning.engine_command import PAGED_CONTEXT_USERS, wants_paged_context
from trtllm_truss.builder.planning.families import FAMILIES, Family, find_family
from trtllm_truss.builder.planning.flags import BUILD_FLAGS, NEWEST, OLDEST
from trtllm_truss.builder.planning.target import Target
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

_ROTARY = ("rotary_base", "rotary_dim", "rotary_scaling")
_VERSIONS = tuple(family.version_setting for family in FAMILIES if family.version_setting)


def refuse_gpu_build(
    settings: Settings, build: Build, checkpoint: Checkpoint, target: Target
) -> Family:
    """The checkpoint's family, where nothing speaks against the build.

    Raises:
        SettingsError: something does; the message holds all of it.
    """
    if not OLDEST <= target.release < NEWEST:
        raise SettingsError(
            f"TensorRT-LLM {target.version} cannot build engines here: images before 24.04 have no "
            "builder, and 1.3 removed it. Use an image from 24.04 to 26.07."
        )
    family = find_family(checkpoint.architecture)
    if family is None:
        names = ", ".join(family.name for family in FAMILIES)
        raise SettingsError(
            f"{checkpoint.architecture} cannot be built; families that can: {names}. Build it by "
            "hand, and name the result in engine_repository."
        )
    _raise(
        [
            *_code_problems(settings, build, checkpoint),
            *_family_problems(build, checkpoint, family, target),
            *_member_problems(build, family),
            *_split_problems(settings, checkpoint, family),
            *_version_problems(build, target),
            *quantization_problems(settings, build, checkpoint, family),
            *gpu_problems(settings, build, target),
            *_runtime_problems(settings, build),
        ]
    )
    return family


def refuse_cpu_build(settings: Settings, build: Build, checkpoint: Checkpoint) -> None:
    """Lets a build for the CPU pass, or not.

    Raises:
        SettingsError: something speaks against it; the message holds all of it.
    """
    _raise(list(cpu_problems(settings, build, checkpoint)))


def _family_problems(
    build: Build, checkpoint: Checkpoint, family: Family, target: Target
) -> Iterator[str]:
    if target.release < family.since:
        since = ".".join(map(str, family.since))
        yield f"{family.name} needs TensorRT-LLM {since}; use a newer image"
    if checkpoint.quantized_by is not None:
        yield quantized_already(checkpoint)
    if build.load_by_shard and not family.load_by_shard:
        yield f"build.load_by_shard is not for {family.name}; remove it"
    if build.use_fused_mlp and not family.gated_mlp:
        yield f"build.use_fused_mlp needs a gated MLP, which {family.name} has not; remove it"
    if build.multi_block_mode and family.name == "Qwen":
        yield "build.multi_block_mode is not for Qwen; remove it"


def _code_problems(settings: Settings, build: Build, checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.has_code and not settings.trust_remote_code:
        yield (
            f"{build.checkpoint_repository} brings Python code of its own, which converting it "
            "runs; set trust_remote_code to true if you trust it"
        )


def _member_problems(build: Build, family: Family) -> Iterator[str]:
    for key in _VERSIONS:
        if getattr(build, key) is not None and key != family.version_setting:
            yield f"build.{key} is not for {family.name}; remove it"
    required = family.version_setting if family.version_required else None
    if required is not None and getattr(build, required) is None:
        choices = "v1_7b, v1_13b, v2_7b, v2_13b"
        yield f"build.{required} is missing; the checkpoint does not tell which of {choices} it is"
    for key in _ROTARY:
        if getattr(build, key) is not None and key not in family.rotary_settings:
            yield f"build.{key} is not for {family.name}; remove it"


def _split_problems(settings: Settings, checkpoint: Checkpoint, family: Family) -> Iterator[str]:
    tensor, pipeline = settings.tensor_parallelism, settings.pipeline_parallelism
    measures = {
        f"attention heads ({checkpoint.heads})": checkpoint.heads % tensor,
        f"key/value heads ({checkpoint.kv_heads})": _uneven(checkpoint.kv_heads, tensor),
        f"inner size ({checkpoint.inner_size})": checkpoint.inner_size % tensor,
    }
    if uneven := [name for name, rest in measures.items() if rest]:
        yield (
            f"tensor_parallelism {tensor} does not divide the model's {', '.join(uneven)}; set it "
            f"to {_largest_split(checkpoint, tensor)}"
        )
    if pipeline > checkpoint.layers:
        yield f"pipeline_parallelism {pipeline} is more than the model's {checkpoint.layers} layers"
    if pipeline > 1 and not family.pipeline:
        yield f"{family.name} cannot be split by layers; set pipeline_parallelism to 1"


def _uneven(heads: int, tensor: int) -> int:
    """Fewer heads than GPUs are copied, if all GPUs get as many."""
    fewer, more = sorted((heads, tensor))
    return more % fewer


def _largest_split(checkpoint: Checkpoint, most: int) -> int:
    """The largest tensor parallelism up to `most` that the model allows; 1 always does."""
    return next(
        tensor
        for tensor in range(most, 0, -1)
        if not checkpoint.heads % tensor
        and not checkpoint.inner_size % tensor
        and not _uneven(checkpoint.kv_heads, tensor)
    )


def _version_problems(build: Build, target: Target) -> Iterator[str]:
    for row in BUILD_FLAGS:
        gone = row.afterwards and target.release >= row.until
        if gone and getattr(build, row.setting) is not None:
            until = ".".join(map(str, row.until))
            yield (
                f"build.{row.setting} is no build option since TensorRT-LLM {until}; "
                f"{row.afterwards}"
            )


def _runtime_problems(settings: Settings, build: Build) -> Iterator[str]:
    if build.use_paged_context_fmha is False and wants_paged_context(settings):
        names = " or ".join(f"runtime.{name}" for name in PAGED_CONTEXT_USERS)
        yield f"build.use_paged_context_fmha is false, which {names} needs; remove it"


def _raise(problems: list[str]) -> None:
    if problems:
        raise SettingsError("cannot build: " + "; ".join(problems) + ".")
