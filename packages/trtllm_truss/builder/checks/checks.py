"""Validate a build before any download; report all problems at once."""

from __future__ import annotations

from collections.abc import Iterator

from trtllm_truss.builder.checks.cpu import cpu_problems
from trtllm_truss.builder.checks.gpu import gpu_problems
from trtllm_truss.builder.checks.quantization import (
    quantization_problems,
    quantized_already,
)
from trtllm_truss.builder.planning.engine_command import PAGED_CONTEXT_USERS, wants_paged_context
from trtllm_truss.builder.planning.families import FAMILIES, Family, find_family
from trtllm_truss.builder.planning.flags import BUILD_FLAGS, NEWEST, OLDEST
from trtllm_truss.builder.planning.target import Target
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import Settings

_ROTARY = ("rotary_base", "rotary_dim", "rotary_scaling")
_VERSIONS = tuple(family.version_setting for family in FAMILIES if family.version_setting)


def validate_gpu_build(
    settings: Settings, build: Build, checkpoint: Checkpoint, target: Target
) -> Family:
    """Validate a build for GPUs and return the checkpoint's family.

    Raises:
        SettingsError: the build is invalid; the message lists every problem.
    """
    if not OLDEST <= target.release < NEWEST:
        raise SettingsError(
            f"TensorRT-LLM {target.version} cannot build engines: images before 24.04 have no "
            "builder, and 1.3 removed it. Use an image from 24.04 to 26.07."
        )
    family = find_family(checkpoint.architecture)
    if family is None:
        names = ", ".join(family.name for family in FAMILIES)
        raise SettingsError(
            f"{checkpoint.architecture} is not supported; supported families: {names}. Build it by "
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


def validate_cpu_build(settings: Settings, build: Build, checkpoint: Checkpoint) -> None:
    """Validate a build for the CPU.

    Raises:
        SettingsError: the build is invalid; the message lists every problem.
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
        yield f"build.load_by_shard is not supported for {family.name}; remove it"
    if build.use_fused_mlp and not family.gated_mlp:
        yield f"build.use_fused_mlp needs a gated MLP, which {family.name} lacks; remove it"
    if build.multi_block_mode and family.name == "Qwen":
        yield "build.multi_block_mode is not supported for Qwen; remove it"


def _code_problems(settings: Settings, build: Build, checkpoint: Checkpoint) -> Iterator[str]:
    if checkpoint.has_code and not settings.trust_remote_code:
        yield (
            f"{build.checkpoint_repository} has custom Python code, which the conversion runs; set "
            "trust_remote_code to true if you trust it"
        )


def _member_problems(build: Build, family: Family) -> Iterator[str]:
    for key in _VERSIONS:
        if getattr(build, key) is not None and key != family.version_setting:
            yield f"build.{key} is not supported for {family.name}; remove it"
    required = family.version_setting if family.version_required else None
    if required is not None and getattr(build, required) is None:
        choices = "v1_7b, v1_13b, v2_7b, v2_13b"
        yield f"build.{required} is missing; set it to one of {choices}"
    for key in _ROTARY:
        if getattr(build, key) is not None and key not in family.rotary_settings:
            yield f"build.{key} is not supported for {family.name}; remove it"


def _split_problems(settings: Settings, checkpoint: Checkpoint, family: Family) -> Iterator[str]:
    tensor, pipeline = settings.tensor_parallelism, settings.pipeline_parallelism
    remainders = {
        f"attention heads ({checkpoint.heads})": checkpoint.heads % tensor,
        f"key/value heads ({checkpoint.kv_heads})": _uneven(checkpoint.kv_heads, tensor),
        f"inner size ({checkpoint.inner_size})": checkpoint.inner_size % tensor,
    }
    if uneven := [name for name, rest in remainders.items() if rest]:
        yield (
            f"tensor_parallelism {tensor} does not divide the model's {', '.join(uneven)}; set it "
            f"to {_largest_split(checkpoint, tensor)}"
        )
    if pipeline > checkpoint.layers:
        yield f"pipeline_parallelism {pipeline} exceeds the model's {checkpoint.layers} layers"
    if pipeline > 1 and not family.pipeline:
        yield f"{family.name} has no pipeline parallelism; set pipeline_parallelism to 1"


def _uneven(heads: int, tensor: int) -> int:
    """Return 0 if all GPUs get equally many heads; fewer heads than GPUs are copied."""
    fewer, more = sorted((heads, tensor))
    return more % fewer


def _largest_split(checkpoint: Checkpoint, maximum: int) -> int:
    """Return the largest tensor parallelism up to `maximum` that divides the model; at least 1."""
    return next(
        tensor
        for tensor in range(maximum, 0, -1)
        if not checkpoint.heads % tensor
        and not checkpoint.inner_size % tensor
        and not _uneven(checkpoint.kv_heads, tensor)
    )


def _version_problems(build: Build, target: Target) -> Iterator[str]:
    for row in BUILD_FLAGS:
        gone = row.afterwards and target.release >= row.until
        if gone and getattr(build, row.setting) is not None:
            until = ".".join(map(str, row.until))
            yield (f"build.{row.setting} was removed in TensorRT-LLM {until}; {row.afterwards}")


def _runtime_problems(settings: Settings, build: Build) -> Iterator[str]:
    if build.use_paged_context_fmha is False and wants_paged_context(settings):
        names = " or ".join(f"runtime.{name}" for name in PAGED_CONTEXT_USERS)
        yield f"build.use_paged_context_fmha is false, but {names} needs it; remove it"


def _raise(problems: list[str]) -> None:
    if problems:
        raise SettingsError("cannot build: " + "; ".join(problems) + ".")
